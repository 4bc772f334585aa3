"""Project heads onto structured forms: previous token, first token, a band with learned values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from attnworks.attention import Geometry, Mechanism, MechanismSpec
from attnworks.attention.heads import mask_of_heads
from attnworks.attention.structured import Structured
from attnworks.core.checks import integer, number, text
from attnworks.core.places import HeadId, Slot, select_heads
from attnworks.reshape.contract import AUTO, RESHAPES, Reshape, ReshapeContext, ReshapeResult, run_over_text
from attnworks.reshape.projection.forms import Form, FormHook, candidates, read_form
from attnworks.reshape.surgery import (
    attention_groups,
    check_mechanisms,
    layers_alike,
    mechanisms_of,
    with_alike,
    with_mechanisms,
)
from attnworks.traces.layer import LayerTrace
from attnworks.traces.subject import LayerHook

PREDICTION_SENTENCES = 64
"""About this many sentences are used to try each head alone."""
MAX_WINDOW = 64


@RESHAPES.register("project")
@dataclass(frozen=True, kw_only=True)
class Project(Reshape):
    """P_h -> the nearest convex mix of fixed maps over the text, plus a small error at a few offsets, for chosen heads.

    heads       "3.2,4.*", with enc or dec in front where a model has both
    form        "auto": one fixed map where it is nearly as near as the best mix, else the mix; "mix": always the mix;
                "band": offsets up to the window; "previous", "next", "self", or members as of `structured`: "first",
                "-2..2/mean"
    window      offsets that are candidates, on each side
    eps         largest error at an offset outside of the form
    sparsity    offsets with an error, as a share of the mean number of tokens of a sentence

    Mixes are nearest in Frobenius norm over the rows of the text (S4.148); errors are what the mix leaves of the head,
    on average, at the offsets within 16 tokens where that is most, clipped to eps (D11). Heads lose W_Q and W_K; mixes
    and errors are parameters that healing trains. The loss should rise by the sum of what each head does alone.
    A head of layers that share their weights is chosen by its name in any of them, and gets one form in all.
    Source: Conti 2024, section 3.1.1 (S4.133, S4.149).
    Departs: a form of positions has to serve all sentences, where the document projects one map.
    """

    name: ClassVar[str] = "project"

    heads: str
    form: str = AUTO
    window: int = 2
    eps: float = 0.02
    sparsity: float = 0.05

    def __post_init__(self) -> None:
        integer("projecting with window", self.window, 0, MAX_WINDOW)
        for name in ("eps", "sparsity"):
            number(f"projecting with {name}", getattr(self, name), 0, 1)
        for name in ("heads", "form"):
            text(f"projecting with {name}", getattr(self, name), "for instance heads='0.2,1.*' or form='previous'")
        read_form(self.form, self.window)

    def check(self, model: torch.nn.Module) -> None:
        check_mechanisms(model, _with_specs(model, dict.fromkeys(self.chosen(model), Structured.name)))

    def chosen(self, model: torch.nn.Module) -> list[HeadId]:
        """The heads that are asked for, each with itself in the layers that share its weights."""
        named = select_heads(self.heads, {slot: len(specs) for slot, specs in mechanisms_of(model).items()})
        return with_alike(model, named)

    def make(self, context: ReshapeContext) -> ReshapeResult:
        heads = self.chosen(context.model)
        forms = self.fit(context, heads)
        rise = sum(rise_alone(context, forms).values())
        done = {str(head): str(forms[head]) for head in heads}
        return ReshapeResult(with_forms(context.model, forms), done, rise)

    def fit(self, context: ReshapeContext, heads: Sequence[HeadId]) -> dict[HeadId, Form]:
        """The form of every head, fitted to the calibration text."""
        chosen = read_form(self.form, self.window)
        slots = dict.fromkeys(slot for slot, _ in heads)
        members = {slot: chosen or candidates(self.window, slot.causal) for slot in slots}
        alike = layers_alike(context.model)
        hook, errors = (
            FormHook(members, {slot: alike[slot][0] for slot in slots}),
            round(self.sparsity * context.length),
        )
        run_over_text(context.calibration, hook, "measuring heads", context.tell)
        return {head: hook.form(head, self.form, self.eps, errors) for head in heads}


def rise_alone(context: ReshapeContext, forms: Mapping[HeadId, Form]) -> dict[HeadId, float]:
    """How much the form of each head alone adds to the loss, on some of the calibration text.

    A head of several layers that share their weights is counted in the first one.
    """
    text_loss, subject = context.calibration, context.subject
    some = slice(None, None, max(1, len(text_loss.text.kept) // PREDICTION_SENTENCES))
    whole = text_loss.mean(subject, some=some)
    rises: dict[HeadId, float] = {}
    alike = layers_alike(context.model)
    for head, form in forms.items():
        context.tell("trying each head alone", len(rises), len(forms))
        slots = alike[head.slot]
        hook = ProjectionHook(head, form, slots)
        rises[head] = text_loss.mean(subject, hook, some=some) - whole if head.slot == slots[0] else 0.0
    return rises


def with_forms(model: torch.nn.Module, forms: Mapping[HeadId, Form]) -> torch.nn.Module:
    """A copy of the model whose heads have these forms."""
    new = with_mechanisms(model, _with_specs(model, {head: form.spec for head, form in forms.items()}))
    for slot, groups in attention_groups(new).items():
        for mechanism, heads in zip(groups.mechanisms, groups.heads, strict=True):
            own = [HeadId(slot, head) for head in heads]
            if rows := [row for row, head in enumerate(own) if head in forms]:
                take_form(mechanism, [forms[own[row]] for row in rows], rows)
    return new


def _with_specs(model: torch.nn.Module, specs: Mapping[HeadId, str]) -> dict[Slot, list[str]]:
    """The mechanisms of the layers of these heads, with those that they are to have."""
    slots = {slot for slot, _ in specs}
    wanted = {slot: list(by_head) for slot, by_head in mechanisms_of(model).items() if slot in slots}
    for (slot, head), spec in specs.items():
        wanted[slot][head] = spec
    return wanted


def take_form(mechanism: Mechanism, forms: Sequence[Form], rows: Sequence[int]) -> None:
    """Give heads of a mechanism, by number, the weights of their forms."""
    assert isinstance(mechanism, Structured)
    mix = torch.tensor([form.mix for form in forms], dtype=torch.float64)
    mechanism.set_weights(mix, torch.tensor([form.errors for form in forms], dtype=torch.float64), rows)


class ProjectionHook(LayerHook):
    """Replaces the output of one head by that of its form, in its layer or in all of `slots`."""

    def __init__(self, head: HeadId, form: Form, slots: Sequence[Slot] = ()) -> None:
        (slot, self.head), self.form = head, form
        self.slots = slots or (slot,)
        self.mechanism: Mechanism | None = None

    def attention(self, trace: LayerTrace) -> Tensor | None:
        if trace.slot not in self.slots:
            return None
        one = slice(self.head, self.head + 1)
        V = trace.shared(trace.V, one)
        if self.mechanism is None:
            self.mechanism = MechanismSpec.parse(self.form.spec).build(Geometry(1, trace.Q.shape[-1], V.shape[-1]))
            take_form(self.mechanism.to(V), [self.form], [0])
        Q, K = trace.Q[:, one], trace.shared(trace.K, one)
        Y = trace.Y.clone()
        Y[:, one] = self.mechanism(Q, K, V, mask_of_heads(trace.mask.hiding(), (self.head,))).Y
        return Y
