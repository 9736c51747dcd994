"""The local problem of one sample as functions: the teacher's target, the loss, and its derivatives in the fields."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from sympy import Symbol

from derivations.codegen.arrays import state_evolution_functions
from derivations.codegen.form import RESULT, Function, Loop, Store
from derivations.codegen.kinked import FIELDS, Shapes, filling, kink_count, kinked_derivatives, trained_derivatives
from derivations.codegen.lanes import Lanes, has_lanes
from derivations.codegen.languages import HEADS
from derivations.codegen.llvm import emitted
from derivations.codegen.losses import (
    OWN,
    Field,
    Reads,
    Terms,
    loss_terms,
    parameters_of,
    row_loss,
    row_terms,
    rows_of,
    target_columns,
    target_row,
    whole_loss,
)
from derivations.codegen.printer import printed
from derivations.codegen.tape import Place, Row, Tape
from derivations.models.model import Model, label_fields, parameter_symbol
from derivations.models.symbolic import GENERIC
from derivations.replica.chain import derive_free_entropy
from derivations.replica.saddle_point import derive_saddle_point

__all__ = ["constants_of", "local_problem", "machine_source", "module_source", "printed_body"]


def constants_of(model: Model) -> dict[str, Any]:
    """What whoever calls the functions has to know of a model."""
    return {
        "LENGTH": model.length,
        "COLUMNS": model.columns,
        "TEACHER_RANK": model.teacher_rank,
        "NOISE": model.noise_columns,
        "LABEL_FIELDS": label_fields(model),
        "TARGET_COLUMNS": target_columns(model),
        "PARAMETERS": len(model.parameters),
        "LIFT": model.lift,
        "KINKS": kink_count(model),
    }


def shapes_of(model: Model) -> dict[str, tuple[int, ...]]:
    """The shapes of one sample's arrays."""
    length, columns, size = model.length, model.columns, model.length * model.columns
    kinks, trained = kink_count(model), len(model.trained)
    return {
        "h": (length, columns),
        "k": (length, label_fields(model)),
        "mixing": (length, length),
        "target": (length, target_columns(model)),
        "variance": (length, length) if model.has_grams else (length,),
        "gradient": (length, columns),
        "hessian": (size, size),
        "kinks": (4, kinks),
        "normals": (kinks, size),
        "curvatures": (trained, trained),
        "crossed": (trained, size + kinks),
        "center": (length, columns),
        "factor": (length, columns, columns),
    }


def local_problem(model: Model) -> tuple[Function, ...]:
    """All functions of one sample.

    ``teacher_target`` fills ``target`` (L, L), with a value matrix the outputs (L, v), for a loss without rows the
    teacher's fields (L, t), of the fields ``k`` (L, t).  ``loss`` is that of fields ``h`` (L, r), of ``variance`` (L,)
    and of ``parameters``: omega, the temperatures of student and teacher, and more (see
    `attnphase.kernels.key.model_numbers`).  A model that is ``finite`` takes the matrix C as ``target`` and the Gram
    matrix G, (L, L), as ``variance``.  ``loss_gradient`` and ``loss_derivatives`` return it too, and fill ``gradient``
    (L, r) and ``hessian`` (L r, L r).
    """
    shapes = shapes_of(model)
    functions = [
        Function("teacher_target", ("k", "mixing", "parameters", "target"), (*_target_loops(model),), shapes),
        *(_of_order(model, order, shapes) for order in range(3)),
        kinked_derivatives(model, shapes),
        closed_form(model, shapes),
    ]
    if model.trained:
        functions += [trained_derivatives(model, shapes), _trained_slopes(model, shapes)]
    return tuple(functions)


def _target_loops(model: Model) -> Iterator[Loop]:
    reads, rows, width = Reads.of_arrays(Tape()), row_loss(model), label_fields(model)
    if rows is None:
        yield Loop(tuple(Store(Place("target", (OWN, i)), reads.teacher(OWN, i)) for i in range(width)), model.length)
        return
    for row in rows_of(model, rows.teacher):
        own = OWN if row is None else row
        entries = enumerate(target_row(model, rows, reads, row))
        stores = tuple(Store(Place("target", (own, c)), entry) for c, entry in entries)
        yield Loop(stores, model.length if row is None else None)


def _of_order(model: Model, order: int, shapes: Shapes) -> Function:
    """The loss with its derivatives up to an order."""
    reads, rows, filled = Reads.of_arrays(Tape()), row_loss(model), ("gradient", "hessian")[:order]
    if rows is None:
        loops = [Loop(tuple(_added(loss_terms(model, reads, order), model.columns)))]
    else:
        loops = [
            Loop(
                tuple(_added(row_terms(model, rows, reads, order, row), model.columns)),
                model.length if row is None else None,
            )
            for row in rows_of(model, rows.student)
        ]
    name = ("loss", "loss_gradient", "loss_derivatives")[order]
    return Function(name, (*FIELDS, *filled), tuple(loops), shapes, filled)


def _added(terms: Terms, columns: int) -> Iterator[Store]:
    """What a part of the loss adds to value, gradient and Hessian."""
    yield Store(RESULT, terms.value, adds=True)
    for field, slope in terms.slopes.items():
        yield Store(Place("gradient", field), slope, adds=True)
    for (one, other), curvature in terms.curvatures.items():
        rows = [_flat(field, columns) for field in (one, other)]
        yield Store(Place("hessian", tuple(rows)), curvature, adds=True)
        if one != other:
            yield Store(Place("hessian", tuple(reversed(rows))), curvature, adds=True)


def _flat(field: Field, columns: int) -> int | Row:
    token, column = field
    if isinstance(token, Row):
        return Row(token.scale * columns, token.offset * columns + column)
    return token * columns + column


def _trained_slopes(model: Model, shapes: Shapes) -> Function:
    """First and second derivatives of the loss in the trained parameters, (p,) and (p, p)."""
    reads = Reads.of_arrays(Tape())
    own = parameters_of(model, reads)
    variables = {parameter_symbol(one): reads.tape.variable(own[parameter_symbol(one)]) for one in model.trained}
    loss = whole_loss(model, reads, variables)
    slopes = reads.tape.gradient(loss, [*variables.values()])
    places = {Place("slopes", (i,)): slope for i, slope in enumerate(slopes)}
    for (i, j), value in reads.tape.curvatures(slopes, [*variables.values()]).items():
        places |= {Place("curvatures", (i, j)): value, Place("curvatures", (j, i)): value}
    return filling("trained_slopes", (*FIELDS, "slopes", "curvatures"), places, shapes)


def closed_form(model: Model, shapes: Shapes) -> Function:
    """The proximal point where a model gives it, instead of a search: returns zero where it gives none."""
    tape, stores = Tape(), []
    if model.prox is not None:
        symbols = [Symbol(name, real=True) for name in ("center", "teacher", "V")]
        factor = tape.read("factor", 0, 0, 0)
        values = dict(
            zip(symbols, (tape.read("center", 0, 0), tape.read("target", 0, 0), factor * factor), strict=True)
        )
        *cases, (last, _) = model.prox(*symbols)
        point = tape.of(last, values)
        for value, condition in reversed(cases):
            point = tape.of(condition, values).chosen(tape.of(value, values), point)
        stores = [Store(Place("h", (0, 0)), point), Store(RESULT, tape.node(1), adds=True)]
    return Function("closed_form", ("center", "target", "factor", "h"), (Loop(tuple(stores)),), shapes)


# --- sources ----------------------------------------------------------------------------------------------------------


def printed_body(model: Model) -> str:
    """The functions of `local_problem` as Python, to stand behind one of `derivations.codegen.languages.HEADS`."""
    constants = "\n".join(f"{name} = {value!r}" for name, value in constants_of(model).items())
    return f"{constants}\n\n\n{printed(local_problem(model))}"


def machine_source(model: Model, rules: Mapping[str, float], *, own: bool, numbers: int) -> tuple[dict[str, Any], str]:
    """What callers have to know of a model, and its functions as LLVM's text.

    Parameters
    ----------
    model : Model
    rules : mapping
        Numbers of the minimiser, by name.
    own : bool
        For samples at finite d, each with its own weights.
    numbers : int
        In a register of the processor.
    """
    functions, constants = local_problem(model), constants_of(model)
    if has_lanes(model):
        lanes = Lanes(model, own, rules)
        functions, constants = (*functions, *lanes.functions()), constants | lanes.constants()
    return constants, emitted(functions, int(rules["ARGUMENTS"]), numbers)


def module_source(model: Model, *, separable: bool = False) -> str:
    """Source of one readable module: a model's local problem and state-evolution maps, in NumPy.

    The functions are those of `local_problem` and `derivations.codegen.arrays.state_evolution_source`.
    """
    free_entropy = derive_free_entropy(GENERIC, separable=separable)
    maps = state_evolution_functions(derive_saddle_point(free_entropy), free_entropy)
    title = (
        '"""Local problem and state evolution. Generated from the derived equations.\n\n'
        "teacher_target makes the teacher's target of fields k (L, t); parameters are omega and the\n"
        "temperatures of student and teacher. loss, loss_gradient and loss_derivatives are those of one\n"
        'sample at fields h (L, r), or with a trailing axis of many.\n"""\n'
    )
    head = HEADS["numpy"].replace("from numpy", "import numpy as np\nfrom numpy", 1)
    return f"{title}\n{head}\n\n{printed_body(model)}\n\n{maps}"
