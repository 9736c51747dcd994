"""What a page says of a model: its definitions, the loss of one sample, the title; a class for each kind of model."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import singledispatch
from typing import Any, Protocol, cast

from sympy import S, Symbol

from derivations.algebra import symbols as sym
from derivations.algebra.tokens import TokenMatrix
from derivations.models.attention import AttentionModel
from derivations.models.foreign import contained
from derivations.models.model import Definition, parameter_symbol
from derivations.models.scalar import ScalarModel
from derivations.models.scores import RowScore
from derivations.printing.document import Page, cited
from derivations.printing.latex import EquationPrinter
from derivations.printing.setting import Setting

__all__ = ["PRODUCTS", "Law", "ModelText", "Sizes", "score_names", "text_of"]


@dataclass(frozen=True)
class Sizes:
    """Printed sizes: tokens, columns r of W, rank of Q, columns t of the teacher's weights, rank of its scores."""

    length: str
    columns: str
    rank: str
    teacher: str
    teacher_rank: str

    def shape(self, matrix: TokenMatrix) -> str:
        """Printed set of matrices that ``matrix`` belongs to."""
        names = {sym.r: self.columns, sym.t: self.teacher}
        rows, columns = (names.get(size, str(size)) for size in matrix.shape)
        if (rows, columns) == ("1", "1"):
            return r"\mathbb{R}"
        return rf"\mathbb{{R}}^{{{rows}}}" if columns == "1" else rf"\mathbb{{R}}^{{{rows} \times {columns}}}"


@dataclass(frozen=True)
class Law:
    """What a page needs to know beyond the model: the regulariser and the tokens' law.

    ``penalty`` is the LaTeX of the regulariser of one row, None for the ridge; ``minimizer`` that of the weight that
    minimises ``r(w) + A w^2/2 - B w``, where a row is one weight and there is a formula. With ``ridges`` every column
    has a ridge of its own.
    """

    penalty: str | None = None
    clusters: bool = False
    setting: Setting | None = None
    minimizer: str | None = None
    ridges: bool = False

    def temperature(self, symbol: Symbol) -> str:
        """What logits are divided by, in a formula: nothing where it is 1."""
        name = EquationPrinter().show(symbol)
        return f" / {name}" if self.setting is not None and name in self.setting.parameters else ""

    def definitions(self, model: AttentionModel | ScalarModel) -> tuple[Definition, ...]:
        """The loss of one sample, step by step, without temperatures of 1."""
        symbols = (sym.student_temperature, sym.teacher_temperature)
        ones = {symbol: S.One for symbol in symbols if not self.temperature(symbol)}
        shifted = self.clusters if self.setting is None else self.setting.shifted
        return tuple(Definition(d.symbol, d.value.xreplace(ones)) for d in model.definitions(shifted=shifted))

    @property
    def noisy(self) -> bool:
        """Whether a problem's labels have noise."""
        return self.setting is not None and EquationPrinter().show(sym.noise_variance) in self.setting.parameters

    @property
    def regularizer(self) -> str:
        """The regulariser in a title."""
        return "ridge" if self.penalty is None else "separable regulariser"

    @property
    def of_weights(self) -> str:
        """The regulariser in the risk."""
        if self.penalty is not None:
            return r"\sum_i r(w_i)"
        if self.ridges:
            return r"\tfrac12 \sum_i \lambda_i \left\lVert W_{\cdot i} \right\rVert^2"
        return r"\frac{\lambda}{2} \left\lVert W \right\rVert_F^2"


class ModelText(Protocol):
    """What pages ask of a kind of model."""

    @property
    def sizes(self) -> Sizes:
        """Printed sizes."""
        ...

    @property
    def has_entries(self) -> bool:
        """Whether the loss is defined by matrices, so that its entries are worth a section."""
        ...

    @property
    def has_baseline(self) -> bool:
        """Whether a linear map of the tokens is something to compare with."""
        ...

    def subject(self) -> str:
        """The model in a title."""
        ...

    def definitions(self, page: Page) -> None:
        """The section that defines the model and its risk."""
        ...

    def products(self, page: Page, squares: str) -> None:
        """The section on losses of ``Q = W^T W / d``, if this is one, by the mean of a row's ``w w^T``."""
        ...


PRODUCTS = "Products of the columns"
_MEANS = r"Means over the fields of a training sample are over $\mathsf{Z}$ too; test errors"


@singledispatch
def text_of(model: Any, law: Law, concrete: bool) -> ModelText:
    """What a page says of a model.

    Parameters
    ----------
    model : Model
    law : Law
    concrete : bool
        Say it for the model's own sizes.

    Raises
    ------
    TypeError
        Of this kind of model nothing is known.
    """
    raise TypeError(f"no page for the model {type(model).__name__}")


@dataclass(frozen=True)
class _AttentionText:
    """Teacher and student attention."""

    model: AttentionModel
    law: Law
    concrete: bool
    has_entries = True

    @property
    def has_baseline(self) -> bool:
        return not self.model.values

    @property
    def sizes(self) -> Sizes:
        model, student, teacher = self.model, self.model.student, self.model.teacher
        if self.concrete:
            return Sizes(*map(str, (model.length, model.columns, student.rank, model.teacher_rank, teacher.rank)))
        scores = f"r - {model.values}" if model.values else "r"
        rank = scores if student.tied else f"({scores})/2" if model.values else "r/2"
        return Sizes("L", "r", rank, "t", f"t - {model.values}" if model.values else "t")

    def subject(self) -> str:
        model, sizes, law = self.model, self.sizes, self.law
        student_score, teacher_score = score_names(model)
        return (
            f"{'Tied' if model.student.tied else 'Untied'} ${student_score}$ attention of rank "
            f"${sizes.rank}$, "
            f"${teacher_score}$ teacher of rank ${sizes.teacher_rank}$, {law.regularizer}"
            f"{', mixture tokens' if law.clusters else ''}{', value matrix' if model.values else ''}"
        )

    def products(self, page: Page, squares: str) -> None:
        """Attention takes no Q."""

    def definitions(self, page: Page) -> None:
        page.heading("Model", "D")
        self._teacher(page)
        self._student(page)
        self._scores(page)
        self._risk(page)

    def _teacher(self, page: Page) -> None:
        sizes, length, law = self.sizes, self.sizes.length, self.law
        _, teacher_score = score_names(self.model)
        tokens = (
            r"Tokens are the rows $x_\ell \sim \mathcal{N}(0, \Sigma_\ell)$ of "
            rf"$x \in \mathbb{{R}}^{{{length} \times d}}$, independent over $\ell$"
        )
        if law.clusters:
            tokens = (
                r"Every token $\ell$ is in a cluster $c_\ell$, with any joint law $P(c_1, \dots, c_L)$; given the "
                r"clusters, tokens are the rows $x_\ell \sim \mathcal{N}(\mu_{\ell c_\ell}, \Sigma_{\ell c_\ell})$ of "
                rf"$x \in \mathbb{{R}}^{{{length} \times d}}$, independent over $\ell$ "
                r"(paper, Result C.2)"
            )
        page.text(
            rf"{tokens}; positional "
            rf"encodings are "
            rf"$p \in \mathbb{{R}}^{{{length} \times d}}$. Teacher ({cited('(1), (16)')}), with "
            rf"$Q_\star \in \mathbb{{R}}^{{d \times {sizes.teacher}}}$ and a fixed matrix "
            rf"$A \in \mathbb{{R}}^{{{length} \times {length}}}$; $\omega$ is here the "
            rf"mixing parameter; everywhere else $\omega_\ell$ is a local field, and $\omega$ that of "
            rf"all tokens together:"
        )
        page.formula(
            (
                "y(x)",
                r"= \mathsf{T}\left(\frac{x Q_\star}{\sqrt{d}}\right) x, \qquad "
                rf"\mathsf{{T}}(k) = (1 - \omega) \, {teacher_score}\left(k k^\top"
                rf"{law.temperature(sym.teacher_temperature)}\right) + "
                rf"\omega A",
            )
        )
        if self.model.noisy:
            page.text(
                rf"{_noise(length)}; they are made by $\mathsf{{Y}} = \mathsf{{T}}(k) + \mathsf{{Z}}$ in place of "
                rf"$\mathsf{{T}}(k)$. {_MEANS} and errors of the linear map are those of $\mathsf{{Z}} = 0$."
            )

    def _student(self, page: Page) -> None:
        sizes, length, columns, law = self.sizes, self.sizes.length, self.sizes.columns, self.law
        student, teacher = self.model.student, self.model.teacher
        student_score, _ = score_names(self.model)
        if student.tied:
            weights = rf"$W = Q \in \mathbb{{R}}^{{d \times {columns}}}$"
            logits, number = r"h h^\top", "(2), (15)"
        else:
            weights = (
                rf"$W = (Q|K) \in \mathbb{{R}}^{{d \times {columns}}}$, fields "
                rf"$h = (h_Q|h_K)$, $h_Q, h_K \in \mathbb{{R}}^{{{length} \times {sizes.rank}}}$"
            )
            logits, number = r"h_Q^{} h_K^\top", "(124)"
        page.text(f"Student ({cited(number)}), {weights}:")
        page.formula(
            (
                "f_W(x)",
                r"= \mathsf{S}\left(\frac{(x + p) W}{\sqrt{d}}\right) (x + p), \qquad "
                rf"\mathsf{{S}}(h) = {student_score}\left({logits}{law.temperature(sym.student_temperature)}\right)",
            )
        )
        if student.causal or teacher.causal:
            masked = " and ".join(n for n, one in (("student", student), ("teacher", teacher)) if one.causal)
            page.text(rf"Under the causal mask of the {masked}, row $a$ of logits holds its entries $b \le a$ only.")

    def _scores(self, page: Page) -> None:
        model, (student_score, teacher_score) = self.model, score_names(self.model)
        size = min(model.length, 3) if self.concrete or self.law.setting is not None else 2
        scores = {student_score: model.student.score, teacher_score: model.teacher.score}
        if any(score.known for score in scores.values()):
            page.text(f"Scores act on each row $z$ of logits; for a row of {size}:")
        for name, score in scores.items():
            if score.known:
                page.formula((f"{name}(z)", f"= {_row(score, size)}"))

    def _risk(self, page: Page) -> None:
        model, law = self.model, self.law
        page.text(
            rf"The risk ({cited('(3)')}) over $n = \alpha d$ samples, and the loss of one sample as "
            rf"a function of its "
            r"local fields $h_\ell = W^\top (x_\ell + p_\ell)/\sqrt{d}$ and $k_\ell = Q_\star^\top "
            r"x_\ell/\sqrt{d}$, since "
            r"$x x^\top/d \to D = \operatorname{diag}(\rho^\Sigma_\ell)$ with "
            r"$\rho^\Sigma_\ell = \operatorname{Tr} \Sigma_\ell/d$:"
        )
        noise = r" + \mathsf{Z}^\mu x^\mu" if model.noisy else ""
        page.formula(
            (
                r"\mathcal{R}(W)",
                rf"= \sum_{{\mu = 1}}^{{n}} \frac{{1}}{{2d}} \left\lVert y(x^\mu)"
                rf"{noise} - f_W(x^\mu) \right\rVert_F^2 + {law.of_weights}",
            )
            if not model.values
            else (r"\mathcal{R}(W)", rf"= \sum_{{\mu = 1}}^{{n}} \ell(h^\mu, k^\mu) + {law.of_weights}")
        )
        if law.penalty is not None:
            page.text("with the regulariser of one row of the weights")
            page.formula((r"r(w)", f"= {law.penalty}"))
        if model.values:
            page.text(
                rf"Teacher and student attend to values of width ${model.values}$ instead of the tokens; here both are "
                "read through a value matrix, the last columns of the weights: fields "
                r"$h = (h_Q | h_V)$ and $k = (k_Q | k_V)$, where $h_Q$ stands for all that makes the logits."
            )
            page.formula(("y", r"= \mathsf{S}(h_Q) \, h_V"))
            page.formula((r"y^\star", r"= \mathsf{Y} \, k_V" if model.noisy else r"= \mathsf{T}(k_Q) \, k_V"))
        page.formula((r"\ell(h, k)", f"= {EquationPrinter().show(self._sized.sample_loss.value)}"))

    @property
    def _sized(self) -> AttentionModel:
        """The model with its number of tokens as the page prints it."""
        return self.model if self.concrete else replace(self.model, length=cast(int, Symbol(self.sizes.length)))


def _noise(length: str) -> str:
    """What the labels' noise is, for so many tokens."""
    return (
        rf"The labels of the training samples have noise $\mathsf{{Z}} \in \mathbb{{R}}^{{{length} \times {length}}}$ "
        r"with independent entries $\mathsf{Z}_{ab} \sim \mathcal{N}(0, \Delta)$, new in every sample"
    )


def score_names(model: AttentionModel) -> tuple[str, str]:
    """Printed names of the student's and the teacher's score, different ones for different scores."""
    student, teacher = model.student.score, model.teacher.score
    if student.latex != teacher.latex or student.name == teacher.name:
        return student.latex, teacher.latex
    return f"{student.latex}_S", f"{teacher.latex}_T"


def _row(score: RowScore, size: int) -> str:
    """A row function's values on a row of ``size`` generic logits."""
    printer = EquationPrinter()
    with contained():
        values = score.entries([Symbol(f"z_{b}", real=True) for b in range(1, size + 1)])
    entries = r",\quad ".join(printer.show(value) for value in values)
    return rf"\left({entries}\right)"


@dataclass(frozen=True)
class _ScalarText:
    """A loss given as one expression of the fields."""

    model: ScalarModel
    law: Law
    concrete: bool
    has_entries = False
    has_baseline = False

    @property
    def sizes(self) -> Sizes:
        model = self.model
        sizes = (model.length, model.columns, model.columns, model.teacher_rank, model.teacher_rank)
        return Sizes(*map(str, sizes)) if self.concrete else Sizes("L", "r", "r", "t", "t")

    def subject(self) -> str:
        name = self.model.name
        loss = f"{name.replace('_', ' ').capitalize()} loss" if name.isidentifier() else "A loss of one's own"
        return f"{loss} with a {self.law.regularizer}{', mixture tokens' if self.law.clusters else ''}"

    def definitions(self, page: Page) -> None:
        model, sizes, law = self.model, self.sizes, self.law
        page.heading("Model", "D")
        page.text(
            r"Tokens are the rows $x_\ell \sim \mathcal{N}(0, \Sigma_\ell)$, independent over $\ell$, "
            r"with encodings "
            rf"$p_\ell$. Local fields $h_\ell = W^\top (x_\ell + p_\ell)/\sqrt{{d}} \in "
            rf"\mathbb{{R}}^{{{sizes.columns}}}$ "
            rf"and $k_\ell = Q_\star^\top x_\ell/\sqrt{{d}} \in \mathbb{{R}}^{{{sizes.teacher}}}$. "
            rf"The risk over "
            r"$n = \alpha d$ samples and the loss of one sample "
            f"(here at $L = {model.length}$, $r = {model.columns}$, $t = {model.teacher_rank}$):"
        )
        page.formula(
            (
                r"\mathcal{R}(W)",
                rf"= \sum_{{\mu = 1}}^{{n}} \ell(h^\mu, k^\mu) + {law.of_weights}",
            )
        )
        if law.penalty is not None:
            page.formula((r"r(w)", f"= {law.penalty}"))
        if model.noise_columns:
            page.text(rf"{_noise(str(model.length))}. {_MEANS} are those of $\mathsf{{Z}} = 0$.")
        elif law.noisy:
            page.text(
                r"The teacher's fields of the training samples have noise of variance $\Delta$, independent for every "
                r"sample: $k_\ell$ stands for the sum of both, and $\rho_\ell$ in the equations for its covariance "
                r"$\rho_\ell + \Delta$, but for the test error, which is that of fields without noise."
            )
        if model.cluster_columns:
            page.text(r"The label knows the clusters: $\mathsf{c}_\ell = c_\ell - 1$ is the number of the token's own.")
        definitions = law.definitions(model)
        for definition in definitions:
            page.defined((definition,))
        if model.norms:
            page.text(
                r"The loss takes the products of the weights' columns, $\mathsf{Q} = W^\top W / d$: "
                + ", ".join(
                    rf"$\mathsf{{Q}}_{{{i + 1} {j + 1}}} = {parameter_symbol(name)}$"
                    for name, (i, j) in zip(model.norms, _triangle(model.columns), strict=True)
                )
                + rf". The section {PRODUCTS} has their equations."
            )
        trained = [name for name in model.trained if name not in model.norms]
        if trained:
            page.text(
                r"Some numbers of the loss are trained with the weights. Each adds a function $r$ of its own to the "
                r"risk divided by $d$, which is stationary in it where (by the envelope theorem, with $h$ at the "
                r"minimum of the sample's local problem)"
            )
        for name in trained:
            b = parameter_symbol(name)
            slope = rf"\frac{{\partial \ell}}{{\partial {b}}}"
            page.formula(
                (rf"\alpha\, \mathbb{{E}}\left[{slope}\right] + r_{{{b}}}'({b})", "= 0"),
                (slope, f"= {EquationPrinter().show(definitions[-1].value.diff(b))}"),
            )
        if model.trained and model.has_kink:
            page.text(
                r"Where $h$ lies on a kink, at which some $c$ vanishes, $\operatorname{sign}(c)$ is the number "
                r"$s \in [-1, 1]$ for which $V^{-1} (\omega - h) = \partial \ell / \partial h$, and $\Theta(c)$ is "
                r"$(1 + s)/2$."
            )

    def products(self, page: Page, squares: str) -> None:
        """The section on losses of Q, if this is one.

        Parameters
        ----------
        page : Page
        squares : str
            The mean of ``w w^T`` of a row of the weights.
        """
        model = self.model
        if not model.norms:
            return
        page.heading(PRODUCTS, "Q")
        ridges = EquationPrinter(ridges=self.law.ridges).show(sym.ridges)
        page.text(
            r"$\mathsf{Q}$ is the $q$ of one more site, of covariance $I$ ($\gamma = 1$) without mean and encoding "
            r"($\tau = 0$), whose $\hat V$ is $\hat{\mathsf{Q}}$ and whose other conjugates vanish. So "
            rf"${ridges}$ in the rows' problems is ${ridges} + \hat{{\mathsf{{Q}}}}$, and the free entropy has the "
            r"term $-\tfrac{1}{2} \operatorname{Tr}[\hat{\mathsf{Q}} \mathsf{Q}]$ more. In the regulariser, and in the "
            r"training loss, $\lambda$ stays by itself. Stationarity in $\hat{\mathsf{Q}}$, and by the envelope "
            r"theorem in $\mathsf{Q}$, whose entries $(i, j)$ and $(j, i)$ are one variable:"
        )
        page.formula((r"\mathsf{Q}", f"= {squares}"))
        value = self.law.definitions(model)[-1].value
        for name, (i, j) in zip(model.norms, _triangle(model.columns), strict=True):
            b, entry = parameter_symbol(name), rf"{{{i + 1} {j + 1}}}"
            slope, factor = rf"\frac{{\partial \ell}}{{\partial {b}}}", "2 " if i == j else ""
            page.formula(
                (rf"\hat{{\mathsf{{Q}}}}_{entry}", rf"= {factor}\alpha\, \mathbb{{E}}\left[{slope}\right]"),
                (slope, f"= {EquationPrinter().show(value.diff(b))}"),
            )


def _triangle(columns: int) -> list[tuple[int, int]]:
    """Places of the independent entries of a symmetric matrix, from 0, in the order of a model's `norms`."""
    return [(i, j) for i in range(columns) for j in range(i, columns)]


text_of.register(AttentionModel, _AttentionText)
text_of.register(ScalarModel, _ScalarText)
