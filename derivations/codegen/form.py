"""What generated code is before any language: functions that read elements of arrays and fill in others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from derivations.codegen.tape import Node, Place, Row, nodes_of

__all__ = ["RESULT", "Function", "Loop", "Store"]

RESULT = Place("total")
"""What a function adds up and returns."""


@dataclass(frozen=True)
class Store:
    """Put a value in a place, or add it to what is there."""

    place: Place
    value: Node
    adds: bool = False


@dataclass(frozen=True)
class Loop:
    """Stores, done once, or in so many turns."""

    stores: tuple[Store, ...]
    turns: int | None = None

    def steps(self) -> Iterator[Node | Store]:
        """All operations, and every store once what is there has been read: what is read is what was there before."""
        order = nodes_of(store.value for store in self.stores)
        ready = {node: number for number, node in enumerate(order)}
        reads = [(node.value, ready[node]) for node in order if node.operation == "read"]
        fixed = {place: number for place, number in reads if not place.moves}
        moving = [(place, number) for place, number in reads if place.moves]
        due, done = list[tuple[int, Store]](), list[tuple[Place, int, bool]]()
        for store in self.stores:
            place, turns = store.place, self.turns or 1
            seen = reads if place.moves else [*moving, (place, fixed.get(place, -1))]
            before = [number for other, number in seen if place.may_be(other, turns)]
            # of stores in the same place the order matters, but where all are added
            before += [
                number for other, number, adds in done if not (adds and store.adds) and place.may_be(other, turns)
            ]
            due.append((max([ready[store.value], *before]), store))
            done.append((place, due[-1][0], store.adds))
        stores = sorted(due, key=lambda one: one[0])
        for number, node in enumerate(order):
            yield node
            while stores and stores[0][0] == number:
                yield stores.pop(0)[1]


@dataclass(frozen=True)
class Function:
    """A function of arrays.

    Attributes
    ----------
    name : str
    arguments : tuple of str
        Arrays.
    loops : tuple of Loop
        One after the other.
    shapes : mapping
        Of the arrays that have more than one axis.
    cleared : tuple of str
        Arrays that are zero before the first loop.
    lanes : int
        Samples that are done side by side, for each of which an array has a column; 0 for a single one.
    shared : tuple of str
        Arrays of what the samples have in common.
    in_turn : bool
        Whether two registers are worked on in turn, so that none waits for its own numbers.
    """

    name: str
    arguments: tuple[str, ...]
    loops: tuple[Loop, ...]
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict[str, tuple[int, ...]])
    cleared: tuple[str, ...] = ()
    lanes: int = 0
    shared: tuple[str, ...] = ()
    in_turn: bool = False

    def flat(self, place: Place) -> tuple[int, int]:
        """Where an element lies in memory, as ``scale * turn + offset``."""
        scale, offset = 0, 0
        for size, index in zip(self.shapes.get(place.array, (1,)), place.indices, strict=True):
            own = index if isinstance(index, Row) else Row(0, index)
            scale, offset = scale * size + own.scale, offset * size + own.offset
        return scale, offset
