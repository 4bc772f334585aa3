"""Check a mechanism of one's own: `attnworks.attention.check(Mine, window=3)`, one row per property."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import torch

from attnworks.attention import check_properties as properties
from attnworks.attention.check_cases import BATCH, CHECKED_MASKS, Build, CheckCase, blind_queries
from attnworks.attention.check_properties import Measured
from attnworks.attention.contract import Context, Geometry, Mechanism, MechanismSpec
from attnworks.core.display import ShownTable, counted
from attnworks.core.errors import UsageError, short_message

LENGTH_ONE = "length one equals the reference"
REMEDIES = {
    properties.SHAPES: "return Attended(Y [b h i v], P [b h i j]), and P only where weights are asked for",
    properties.OUTPUTS: "compare attend with reference for this case; random numbers must come from an option seed",
    properties.GRADIENTS: "look for detach, in-place changes, or a wrong backward",
    properties.WEIGHTS: "return in P the weights with which attend makes Y",
    properties.ROWS: "divide each row by its sum, or declare rows_sum_to_one = False",
    properties.HIDDEN: "hide keys by Mask.allowed before the weights, or leave the kind out of supported_masks",
    properties.LATER: "hide keys after the query's own position, or leave causal out of supported_masks",
    properties.BLIND: "use masked_softmax of attention/softmax.py, or fill these rows with zeros",
    LENGTH_ONE: "look for squeeze, and for divisions by n - 1",
    properties.HALF: "compute sums in float32, and return the dtype of V",
    properties.REFUSED: "call forward of Mechanism, which refuses them, not attend alone",
    properties.COST: "count edges, FLOPs and bytes as whole numbers, as AttentionCost says",
}
_HALF_MASKS = ("none", "padding-empty", "causal-padding-empty", "bool-bhij", "additive-bhij")
_REFUSED_CASES = tuple(CheckCase(mask, 5, 7, 11, 13) for mask in ("padding", "causal", "bool-ij", "none"))


@dataclass(frozen=True)
class PropertyRow:
    """One property: whether it holds, what was measured, and what to do if it does not.

    measured   the worst comparison, or the error
    failures   the number of comparisons that failed, of all `comparisons`
    """

    name: str
    passed: bool
    measured: str
    remedy: str
    failures: int
    comparisons: int

    def __str__(self) -> str:
        line = f"{'ok  ' if self.passed else 'FAIL'}  {self.name}: {self.measured}"
        return line if self.passed else f"{line}\n      {self.remedy}"


@dataclass(frozen=True)
class MechanismCheck(ShownTable):
    """The result of `attention.check`: the mechanism, and a row for each property that applies to it."""

    mechanism: str
    rows: tuple[PropertyRow, ...]

    @property
    def ok(self) -> bool:
        return all(row.passed for row in self.rows)

    @property
    def failed(self) -> tuple[str, ...]:
        """The names of the properties that do not hold."""
        return tuple(row.name for row in self.rows if not row.passed)

    def raise_if_failed(self) -> None:
        if not self.ok:
            first = next(row for row in self.rows if not row.passed)
            raise UsageError(
                f"check of {self.mechanism}",
                f"{counted(len(self.rows), 'property')} to hold",
                f"{len(self.failed)} that do not ({'; '.join(self.failed)}), first: {first.measured}",
                first.remedy,
            )

    def __str__(self) -> str:
        return "\n".join([self._title, *map(str, self.rows)])

    @property
    def _title(self) -> str:
        held = len(self.rows) - len(self.failed)
        return f"{self.mechanism}: {held} of {len(self.rows)} properties hold"

    def _table(self) -> tuple[str, Sequence[str], Iterable[Sequence[str]]]:
        rows = [
            ("ok" if row.passed else "FAIL", row.name, row.measured, "" if row.passed else row.remedy)
            for row in self.rows
        ]
        return self._title, ("", "property", "measured", "remedy"), rows


def check_mechanism(
    mechanism: type[Mechanism] | str, /, *, context: Context | None = None, **options: object
) -> MechanismCheck:
    """Run every promise of the contract on a mechanism: what the tests of the package ask of its own ones.

    mechanism  a class, registered or not, or a spec such as "window:window=2"
    context    for mechanisms that need more than Q, K, V and a mask
    options    of the mechanism; choose small ones, as sequences have seven tokens

    Compared with `reference` in float64: outputs, weights and gradients of Q, K, V, parameters and additive masks,
    under every kind of mask that the mechanism declares, with sizes that are distinct primes and with length one.
    Besides: masked and later keys have no influence, queries without keys, half precision, refusals, and the cost.

    >>> check_mechanism("window:window=2").ok
    True
    """
    if isinstance(mechanism, str):
        spec = MechanismSpec.parse(mechanism)
        spec = MechanismSpec(spec.name, {**spec.options, **options})
        title, build = str(spec), _seeded(spec.build)
    elif isinstance(mechanism, type) and issubclass(mechanism, Mechanism):
        title = getattr(mechanism, "name", mechanism.__name__)
        build = _seeded(lambda geometry: mechanism.for_geometry(geometry, **options))
    else:
        raise UsageError(
            "check of a mechanism", "a subclass of Mechanism, or the name of one", repr(mechanism), "pass the class"
        )
    kind = type(build(Geometry(2, 11, 13), torch.float64))
    found: dict[str, _Worst] = {}
    for name, run in _runs(build, kind, context or Context()):
        try:
            for measured in run():
                row = LENGTH_ONE if name == LENGTH_ONE else measured.name
                found.setdefault(row, _Worst()).add(measured)
        except Exception as error:
            found.setdefault(name, _Worst()).add_error(error)
    return MechanismCheck(title, tuple(found[name].row(name) for name in REMEDIES if name in found))


class _Worst:
    """The worst of many comparisons."""

    def __init__(self) -> None:
        self.count, self.failures, self.text, self.excess = 0, 0, "", -1.0

    def add(self, measured: Measured) -> None:
        self.count += 1
        self.failures += not measured.ok
        excess = measured.value / measured.limit if measured.limit else measured.value
        excess = torch.inf if excess != excess else excess
        if excess > self.excess:
            allowed = f"at most {measured.limit:g} allowed" if measured.limit else "none allowed"
            self.excess, self.text = excess, f"{measured.value:.2g} ({allowed}; {measured.where})"

    def add_error(self, error: Exception) -> None:
        self.count, self.failures = self.count + 1, self.failures + 1
        if self.excess < torch.inf:
            kind, message = type(error).__name__, short_message(error)
            self.excess, self.text = torch.inf, kind if message == kind else f"{kind}: {message}"

    def row(self, name: str) -> PropertyRow:
        passed = not self.failures
        text = f"worst of {self.count}: {self.text}" if passed else self.text
        return PropertyRow(name, passed, text, REMEDIES[name], self.failures, self.count)


def _seeded(build: Callable[[Geometry], Mechanism]) -> Build:
    def built(geometry: Geometry, dtype: torch.dtype) -> Mechanism:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(19)
            return build(geometry).to(dtype)

    return built


def _runs(
    build: Build, kind: type[Mechanism], context: Context
) -> Iterator[tuple[str, Callable[[], Iterable[Measured]]]]:
    """Each run with the property that it fails if it raises."""

    def defined(cases: Iterable[CheckCase]) -> list[CheckCase]:
        return [case for case in cases if case.defined_for(kind)]

    cases = [
        *(CheckCase(mask, 7, 7, 11, 13) for mask in CHECKED_MASKS),
        *(CheckCase(mask, 5, 7, 13, 11) for mask in ("none", "padding-empty", "causal", "causal-padding", "bool-bhij")),
        CheckCase("none", 7, 5, 11, 13),
    ]
    for case in defined(cases):
        yield properties.OUTPUTS, lambda case=case: properties.against_reference(build, case, context)
    for case in defined(CheckCase(mask, 1, 1, 11, 13) for mask in ("none", "causal")):
        yield LENGTH_ONE, lambda case=case: properties.against_reference(build, case, context)
    both, lows = (False, True), (torch.bfloat16, torch.float16)
    for mask, weights in product(properties.HIDING, both):
        if CheckCase(mask, 7, 7, 11, 13).defined_for(kind):
            yield (
                properties.HIDDEN,
                lambda mask=mask, weights=weights: properties.masked_keys(
                    build, mask, torch.float64, context, weights=weights
                ),
            )
    if CheckCase("causal", 7, 7, 11, 13).defined_for(kind):
        for i, weights in product((5, 7), both):
            yield (
                properties.LATER,
                lambda i=i, weights=weights: properties.later_keys(build, i, torch.float64, context, weights=weights),
            )
    blinding = [mask for mask in CHECKED_MASKS if blind_queries(mask, 7, 7).any()]
    for case, weights in product(defined(CheckCase(mask, 7, 7, 11, 13) for mask in blinding), both):
        yield (
            properties.BLIND,
            lambda case=case, weights=weights: properties.queries_without_keys(
                build, case, torch.float32, context, weights=weights
            ),
        )
    for case, dtype, weights in product(defined(CheckCase(mask, 7, 7, 11, 13) for mask in _HALF_MASKS), lows, both):
        yield (
            properties.HALF,
            lambda case=case, dtype=dtype, weights=weights: properties.low_precision(
                build, case, dtype, context, weights=weights
            ),
        )
    for case in (case for case in _REFUSED_CASES if not case.defined_for(kind)):
        yield properties.REFUSED, lambda case=case: properties.refused(build, case, context)
    yield (
        properties.COST,
        lambda: properties.costs(build(Geometry(BATCH, 11, 13), torch.float64), Geometry(BATCH, 11, 13)),
    )
