"""Every verb on one model as users run it, through the public functions, with its numbers checked."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import attnworks
from attnworks.core.errors import UsageError
from attnworks.core.places import HeadId, Slot
from attnworks.hf import quiet
from attnworks.hf.anatomy import hf_layers
from attnworks.hf.coverage.reference import NotCheckedError, Reference, WrongNumbersError, checking, passages, run
from attnworks.hf.tiny_text import tiny_tokenizer
from attnworks.text.tokens import Batch
from attnworks.training.objectives.contract import Outputs
from attnworks.training.objectives.sentences import embeddings

ENTROPY_TOLERANCE = 1e-5
EFFECT_TOLERANCE = 1e-5
"""Part of the effect of a change that may be missing in the outputs."""
SOFTMAX_ROUNDING, SINGLE_ROUNDING = 1e-6, 1e-4
"""Rounding as a part of the largest output: of eager softmax, which is in single precision, and of models in it."""
LEAST_EFFECT = 10
"""How many times as large as rounding the effect of a cut must be, so that a cut of other heads is found."""
SAME_MECHANISMS = ("dense", "window:window=99")
"""Mechanisms that change nothing: the window is wider than every text."""


class NotMeasuredError(Exception):
    """An examination without what was asked for, and the reason in its notes."""


class Case:
    """One tiny model with what the verbs need. Each verb gets the same model, which stays as it is."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.tokenizer = tiny_tokenizer(model)
        self.texts = passages(model)
        self.given: dict[str, Any] = {"texts": self.texts, "tokenizer": self.tokenizer}
        self.precise = next(model.parameters()).dtype == torch.float64

    @functools.cached_property
    def to_grow(self) -> dict[str, Any]:
        """What growing is given. A model without an output layer grows by an objective of the user's own."""
        abilities = attnworks.wrap(self.model, self.tokenizer).abilities
        return self.given if abilities.vocabulary else {**self.given, "objective": distance_to_axis}

    @functools.cached_property
    def reference(self) -> Reference:
        with checking():
            return Reference(self.model, self.tokenizer)

    @functools.cached_property
    def heads(self) -> dict[Slot, int]:
        """The number of heads of each attention layer."""
        exam = attnworks.examine(self.model, measures="saturation", **self.given)
        return {Slot.parse(name): number for name, number in exam.model["heads"].items()}

    @property
    def slots_apart(self) -> list[str]:
        """The layers of self-attention, of those that share their weights the first one."""
        parts, found = hf_layers(self.model), dict[object, str]()
        for slot in (slot for slot in self.heads if slot.kind != "cross"):
            found.setdefault(parts[slot].attention if slot in parts else slot, str(slot))
        return [*found.values()]

    def groups(self, slot: Slot) -> list[list[int]]:
        """Sets of heads that a user may cut from a layer: one; all that share keys and values; one of each group."""
        heads = self.heads[slot]
        shared = vars(self.model.config.get_text_config()).get("num_key_value_heads", heads)
        sets = [[1 % heads]]
        if isinstance(shared, int) and 0 < shared < heads and heads % shared == 0:
            share = heads // shared
            sets += [list(range(share)), list(range(0, heads, share))]
        return [each for each in sets if len(each) < heads]

    @functools.cached_property
    def pruned(self) -> tuple[Any, Any]:
        """The model without some heads of its first layer, the first set of heads that can be cut, and the receipt."""
        slot, refusal = next(iter(self.heads)), None
        for heads in self.groups(slot):
            names = ",".join(f"{slot}.{head}" for head in heads)
            try:
                return attnworks.prune(self.model, heads=names, **self.given)
            except UsageError as error:
                refusal = refusal or error
        raise refusal or NotCheckedError(f"{slot} has one head")

    def rounding(self, outputs: Tensor) -> float:
        """How far rounding may move outputs of this size."""
        size = outputs[self.reference.compared].abs().max().item()
        return (SOFTMAX_ROUNDING if self.precise else SINGLE_ROUNDING) * size

    def check_outputs(self, got: Tensor, wanted: Tensor, effect: float, what: str) -> None:
        """The outputs of a changed model at real tokens.

        effect    how much the change moves them
        """
        error = (got - wanted)[self.reference.compared].abs().max().item()
        if not error <= EFFECT_TOLERANCE * effect + self.rounding(wanted):
            raise WrongNumbersError(
                f"{what}: outputs differ by {error:.1e}, where the change moves them by {effect:.1e}"
            )


def distance_to_axis(outputs: Outputs, batch: Batch) -> Tensor:
    """How far the embedding of each sentence is from the first axis: [b]."""
    return 1 - embeddings(outputs, batch)[:, 0]


def try_examine(case: Case) -> str:
    exam = attnworks.examine(case.model, **case.given)
    found = {
        reading.kind: [row for row in reading.value if isinstance(row, Tensor) and len(row)]
        for reading in exam.readings.of("saturation.entropy")
    }
    if not found:
        raise NotMeasuredError("; ".join(exam.notes) or "the examination has no entropy")
    with checking():
        wanted = case.reference.entropies()
    if not case.reference.two_sided:
        found = {"": next(iter(found.values()))}
    for kind, rows in found.items():
        got, expected = ([len(row) for row in each] for each in (rows, wanted.get(kind, [])))
        if got != expected:
            raise WrongNumbersError(f"heads of {kind or 'attention'} layers: {got}, where the model has {expected}")
    layers = f"entropy of {sum(map(len, found.values()))} layers"
    if largest_error(found, wanted) <= ENTROPY_TOLERANCE:
        return layers
    with checking():
        wanted = case.reference.entropies_alone()
    if not (error := largest_error(found, wanted)) <= ENTROPY_TOLERANCE:
        raise WrongNumbersError(f"{layers} differs by {error:.1e}")
    return f"{layers}, as of texts that are not padded"


def largest_error(found: dict[str, list[Tensor]], wanted: dict[str, list[Tensor]]) -> float:
    errors = [row - other for kind, rows in found.items() for row, other in zip(rows, wanted[kind], strict=True)]
    return torch.cat(errors).abs().max().item()


def try_claims(case: Case) -> str:
    tallies = attnworks.claims(on=case.model, **case.given)
    return f"{len(tallies)} claims"


def measure(name: str, case: Case) -> str:
    exam = attnworks.examine(case.model, measures=name, **case.given)
    values = [row for reading in exam.readings.values() for row in reading.value if isinstance(row, Tensor)]
    if not any(row.numel() and row.isfinite().any() for row in values):
        raise NotMeasuredError("; ".join(exam.notes) or f"{name} has no finite number")
    return f"{len(exam.readings)} readings"


def try_prune(case: Case) -> str:
    """Half of all heads, those that are needed least."""
    new, receipt = attnworks.prune(case.model, keep=0.5, **case.given)
    return check_pruned(case, new.model, receipt)


def prune_named(case: Case) -> str:
    new, receipt = case.pruned
    return check_pruned(case, new.model, receipt)


def save(case: Case) -> str:
    """A pruned model, saved and opened again."""
    new, receipt = case.pruned
    with tempfile.TemporaryDirectory() as folder:
        new.save(Path(folder) / "model")
        dtype = str(next(case.model.parameters()).dtype).removeprefix("torch.")
        opened = attnworks.open(Path(folder) / "model", dtype=dtype)
        return check_pruned(case, opened.model, receipt)


def check_pruned(case: Case, model: Any, receipt: Any) -> str:
    """Whether outputs equal those of the whole model with the heads set to zero that the receipt says are gone."""
    reference = case.reference
    gone = [
        HeadId(Slot.parse(name), head)
        for name, heads in receipt.heads.items()
        for head in range(heads.before)
        if head not in heads.after
    ]
    with checking():
        wanted = reference.without(gone, case.heads)
    effect = (wanted - reference.outputs)[reference.compared].abs().max().item()
    if not gone or not effect > LEAST_EFFECT * case.rounding(wanted):
        raise NotCheckedError("the heads that were cut hardly affect the outputs")
    case.check_outputs(run(model, reference.inputs), wanted, effect, "a pruned model and one with these heads at zero")
    return f"equal to {len(gone)} heads at zero"


def try_swap(case: Case) -> str:
    """To a short window; to dense attention and a window over everything, which must change nothing."""
    slots = case.slots_apart
    attnworks.swap(case.model, to="window:window=3", layers=slots[0], **case.given)
    same = SAME_MECHANISMS[-len(slots) :]
    pairs = " ".join(f"{slot}={mechanism}" for slot, mechanism in zip(slots, same, strict=False))
    new, _ = attnworks.swap(case.model, layers=pairs, **case.given)
    check_unchanged(case, new.model, f"a model with {pairs}")
    return f"{pairs} changes nothing"


def try_project(case: Case) -> str:
    slot = next(slot for slot in case.heads if slot.kind != "cross")
    attnworks.project(case.model, heads=f"{slot}.0", form="previous", **case.given)
    return ""


def try_grow(kind: str, case: Case) -> str:
    """Two columns: zeros, which must change nothing; others, which must; and those that lower the loss, if any do."""
    where = f"{next(iter(case.heads))}.0:{kind}=2"
    new, _ = attnworks.grow(case.model, where=where, by="zero", **case.to_grow)
    check_unchanged(case, new.model, f"a model with {where} of zeros")
    new, _ = attnworks.grow(case.model, where=where, by="random", **case.to_grow)
    if torch.equal(run(new.model, case.reference.inputs), case.reference.outputs):
        raise WrongNumbersError(f"{where} of random numbers changes nothing")
    try:
        attnworks.grow(case.model, where=where, **case.to_grow)
    except attnworks.reshape.NoBottleneckError:
        return "zeros change nothing; no direction lowers the loss of these few texts"
    return "zeros change nothing; a direction lowers the loss"


def check_unchanged(case: Case, model: Any, what: str) -> None:
    reference = case.reference
    size = reference.outputs[reference.compared].abs().max().item()
    case.check_outputs(run(model, reference.inputs), reference.outputs, size, what)


def try_undo(case: Case) -> str:
    """A model that is pruned in a folder, and the folder as it was before: equal bit for bit."""
    slot = next(iter(case.heads))
    dtype = str(next(case.model.parameters()).dtype).removeprefix("torch.")
    with tempfile.TemporaryDirectory() as folder:
        before, after, again = (Path(folder) / name for name in ("before", "after", "again"))
        with quiet():
            case.model.save_pretrained(before)
            case.tokenizer.save_pretrained(before)
        names = ",".join(f"{slot}.{head}" for head in case.groups(slot)[-1])
        attnworks.prune(before, case.texts, heads=names, out=after, dtype=dtype)
        attnworks.undo(after, again)
        for file in before.glob("*.safetensors"):
            if file.read_bytes() != (again / file.name).read_bytes():
                raise WrongNumbersError(f"undo gives another {file.name}")
    return "equal bit for bit"


VERBS: dict[str, Callable[[Case], str]] = {
    "examine": try_examine,
    "claims": try_claims,
    "importance": functools.partial(measure, "importance"),
    "ablation": functools.partial(measure, "ablation"),
    "paths": functools.partial(measure, "paths"),
    "prune": try_prune,
    "prune named": prune_named,
    "save": save,
    "undo": try_undo,
    "swap": try_swap,
    "project": try_project,
    "grow values": functools.partial(try_grow, "values"),
    "grow keys": functools.partial(try_grow, "keys"),
}
"""Each returns what was checked. Refusals and crashes are exceptions."""
