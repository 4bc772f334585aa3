"""Copies of a model with heads cut, layers swapped or heads projected; the model itself never changes."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from torch import nn

from attnworks.core.errors import UsageError
from attnworks.core.places import HeadId, Slot
from attnworks.page.server.questions import Changes
from attnworks.page.server.queue import RecentItems
from attnworks.reshape.contract import ReshapeContext
from attnworks.reshape.evaluate import weight_bytes
from attnworks.reshape.projection.forms import Form
from attnworks.reshape.projection.project import Project, with_forms
from attnworks.reshape.surgery import attention_parts, mechanisms_of, silence_heads
from attnworks.reshape.swapping.advice import swapped, whole_layers
from attnworks.reshape.swapping.trials import swap_layers
from attnworks.text.grammar import grammar_passages
from attnworks.traces.loss import TextLoss
from attnworks.traces.subject import Subject
from attnworks.training.objectives import choose_objective

OFFERED_FORMS = ("auto", "mix", "previous", "self", "next", "first", "last", "mean", "band")
OFFERED_MECHANISMS = (
    "dense",
    "window:window=1",
    "window:window=4",
    "window:window=16",
    "longformer:window=4",
    "bigbird:window=4,block=4",
    "linear",
    "luong-dot",
)
"""Mechanisms that need no training and whose maps are weights, with options that suit one sentence."""
EDITED_MODELS_KEPT, EDITED_MODELS_BYTES = 4, 2**30
"""Number and total bytes of the edited models that are kept; one is kept in any case."""
FIT_SENTENCES_LIVE, FIT_BATCH_TOKENS = 32, 1024
"""Sentences to which forms are fitted, and padded tokens of their batches."""


@dataclass(frozen=True)
class PossibleEdits:
    """The edits that a model allows.

    reshape      True, or the reason why there are none
    forms        layer -> structured forms for its heads
    mechanisms   layer -> mechanisms that can replace its own
    """

    reshape: bool | str
    forms: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    mechanisms: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


class EditedModels:
    """A model and its edited copies, of which the last few are kept."""

    def __init__(self, base: Subject) -> None:
        self.base = base
        self._forms: dict[tuple[HeadId, str], Form] = {}
        fitting = EDITED_MODELS_BYTES // max(1, weight_bytes(self.model))
        self._edited: RecentItems[Changes, Subject] = RecentItems(max(1, min(EDITED_MODELS_KEPT, fitting)))

    @property
    def model(self) -> nn.Module:
        return self.base.model

    @cached_property
    def possible(self) -> PossibleEdits:
        try:
            layers = attention_parts(self.model, cross=True)
        except UsageError as error:
            return PossibleEdits(f"expected {error.expected}, got {error.got}")
        if not layers:
            return PossibleEdits("all layers share their weights")
        causal = tuple(form for form in OFFERED_FORMS if form != "next")
        forms = {str(slot): () if slot.crosses else causal if slot.causal else OFFERED_FORMS for slot in layers}
        mechanisms: dict[str, tuple[str, ...]] = {}
        for slot, layer in swap_layers(self.model).items():
            others = (spec for spec in OFFERED_MECHANISMS if {*layer.now} != {spec})
            mechanisms[str(slot)] = tuple(spec for spec in others if layer.refusal((spec,) * len(layer.now)) is None)
        return PossibleEdits(True, forms, mechanisms)

    def subject(self, changes: Changes) -> Subject:
        """The model with these edits."""
        return self._edited.get(changes, lambda: self._edit(changes)) if changes else self.base

    def _edit(self, changes: Changes) -> Subject:
        """Swap layers, then project heads, then set the outputs of cut heads to zero, which keeps their maps."""
        if (reason := self.possible.reshape) is not True:
            raise UsageError("changes of heads", "heads that can be changed", str(reason), "leave the model as it is")
        self._check_heads((*changes.cut, *(head for head, _ in changes.project)))
        model: Any = self.model
        if changes.swap:
            self._check_swaps(changes.swap)
            model = swapped(model, whole_layers(model, dict(changes.swap)))
        if changes.project:
            model = with_forms(model, self._fit_forms(dict(changes.project)))
        if changes.cut:
            model = copy.deepcopy(model) if model is self.model else model
            cut: dict[Slot, list[int]] = {}
            for slot, head in map(HeadId.parse, changes.cut):
                cut.setdefault(slot, []).append(head)
            for slot, heads in cut.items():
                silence_heads(model, slot, heads)
        return self.base.with_model(model.eval())

    def _check_heads(self, names: Iterable[str]) -> None:
        heads = {slot: len(specs) for slot, specs in mechanisms_of(self.model, cross=True).items()}
        known = {f"{slot}.{head}" for slot, number in heads.items() for head in range(number)}
        expected = ", ".join(f"{slot}.0 to {slot}.{number - 1}" for slot, number in heads.items() if number)
        got, remedy = "no head, or one with weights that layers share", "name heads kind.layer.head, from zero"
        for name in names:
            if name not in known:
                raise UsageError(f"head {name[:40]!r}", expected, got, remedy)

    def _check_swaps(self, swaps: Iterable[tuple[str, str]]) -> None:
        layers = self.possible.mechanisms
        for slot, spec in swaps:
            if spec not in layers.get(slot, ()):
                expected = f"one of {', '.join(layers.get(slot, layers))}"
                got = "a mechanism that is not offered there" if slot in layers else "a layer that does not exist"
                remedy = "choose one of those; attnworks swap knows more mechanisms"
                raise UsageError(f"{spec[:40]!r} in {slot[:40]!r}", expected, got, remedy)

    def _fit_forms(self, wanted: Mapping[str, str]) -> dict[HeadId, Form]:
        """The nearest form of every head over some sentences of the grammar corpus, without sparse errors."""
        heads = {HeadId.parse(name): form for name, form in wanted.items()}
        for head, form in heads.items():
            offered = self.possible.forms.get(str(head.slot), ())
            if form not in offered:
                expected = f"one of {', '.join(offered)}" if offered else "a head of self-attention"
                remedy = "choose one of those; attnworks project knows more forms"
                raise UsageError(f"the form {form[:40]!r} for head {head}", expected, "another", remedy)
        missing = [(head, form) for head, form in heads.items() if (head, form) not in self._forms]
        for form in dict.fromkeys(form for _, form in missing):
            names = ",".join(str(head) for head, other in missing if other == form)
            project = Project(heads=names, form=form, eps=0.0, sparsity=0.0)
            fitted = project.fit(self._context, project.chosen(self.model))
            self._forms |= {(head, form): found for head, found in fitted.items()}
        return {head: self._forms[head, form] for head, form in heads.items()}

    @cached_property
    def _context(self) -> ReshapeContext:
        """The original model with the text that forms are fitted to."""
        base = self.base
        text = base.cut_to(base.max_length).read(grammar_passages(FIT_SENTENCES_LIVE), batch_tokens=FIT_BATCH_TOKENS)
        text_loss = TextLoss(base, choose_objective(None, base.abilities), text)
        return ReshapeContext(base, text_loss, text.longest)
