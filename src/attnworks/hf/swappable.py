"""Which mechanisms of attnworks an attention layer of a Hugging Face model can have.

A short pass shows what each layer does besides softmax attention: windows, capped scores, sink logits, what is added
for positions. In a second pass all layers have dense attention of attnworks. If that does not give what the model
gives, on a padded batch and with a cache of keys and values, the layers in which it does not are refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from attnworks.attention import Mask, MechanismSpec
from attnworks.attention.heads import HeadGroups, grouped
from attnworks.core.errors import short_message
from attnworks.core.places import Slot
from attnworks.hf.anatomy import HFPart, hf_layers, layout_of
from attnworks.hf.cached_keys import counts_from_first
from attnworks.hf.cut.proof import allowed_error, distance, outputs_of, running, runs_of
from attnworks.hf.cut.unused import without_queries
from attnworks.hf.head_modules import head_groups_of, is_empty
from attnworks.hf.heads import missing_layer_reason
from attnworks.hf.layer_implementation import can_set_implementation
from attnworks.hf.layout import ModelLayout
from attnworks.hf.observe import attention_hook, observe_interface
from attnworks.hf.swapped_attention import remove_groups, set_groups

FOUND_ATTRIBUTE = "_attnworks_own_attention"
"""The attribute of a model that holds what was found for its layout."""

NO_SCORES = "has no scores that positions could be added to, as the model does"
NO_INTERFACE = "cannot take the place of attention outside of the attention interface of transformers"
SEES_MORE = "would see more than the layer does, which hides keys in a way of its own"
LOST = "needs queries and keys, which heads of the layer have lost"


@dataclass(frozen=True)
class OwnAttention:
    """What the attention of a layer does besides softmax(s Q K^T) V.

    scale      s
    capped     scores are capped: c tanh(S / c)
    sink       a learned logit has a part in each softmax
    added      something is added to the scores, such as T5's positions
    window     the number of earlier tokens that a query sees, if that is less than a text may have
    hides      keys are hidden in another way than by padding and causality, such as a choice of keys for each query
    problem    why dense attention of attnworks does not compute the same, in words
    """

    scale: float | None = None
    capped: bool = False
    sink: bool = False
    added: bool = False
    window: int | None = None
    hides: bool = False
    problem: str | None = None


def own_attention_of(model: nn.Module) -> Mapping[str, OwnAttention]:
    """What was found for every attention module of a model, by its path. It is found once for a layout."""
    layout = layout_of(model)
    known: tuple[ModelLayout, Mapping[str, OwnAttention]] | None = vars(model).get(FOUND_ATTRIBUTE)
    if known is None or known[0] is not layout:
        known = vars(model)[FOUND_ATTRIBUTE] = layout, _find(model)
    return known[1]


def _find(model: nn.Module) -> Mapping[str, OwnAttention]:
    able = [part for part in {part.attention: part for part in hf_layers(model).values()}.values() if _can_change(part)]
    try:
        found = _observed(model, able)
        problems = _problems(model, able) if able else {}
    except Exception as error:
        problem = f"would be in a model that does not run on a few token ids alone ({short_message(error)})"
        return {_path(part): OwnAttention(problem=problem) for part in able}
    return {path: replace(own, problem=problems.get(path)) for path, own in found.items()}


def _can_change(part: HFPart) -> bool:
    _, layout, attention = part.place()
    return layout.interface and part.heads > 0 and not is_empty(attention) and can_set_implementation(attention)


def _path(part: HFPart) -> str:
    return part.place()[1].path


def _observed(model: Any, parts: Sequence[HFPart]) -> dict[str, OwnAttention]:
    """What each layer is given in one pass."""
    found = {_path(part): OwnAttention() for part in parts}
    paths = {model.get_submodule(path): path for path in found}
    config = model.config.get_text_config()
    longest = getattr(config, "max_position_embeddings", None)

    def hook(module: nn.Module, *call: Any) -> None:
        if module in paths:
            Q, K, _, mask, _, options = call
            found[paths[module]] = _of_call(Q, K, mask.by_rows(Q.shape[2], K.shape[2]), options, longest)

    with running(model), observe_interface(model), attention_hook(hook):
        runs_of(model)[0]()
    return found


def _of_call(Q: Tensor, K: Tensor, mask: Mask, options: Mapping[str, Any], longest: Any) -> OwnAttention:
    """What one call shows; `mask` has a table of keys only where it hides some otherwise."""
    added, window, scale = mask.additive(), options.get("sliding_window"), options.get("scaling")
    table = mask.hiding().by_rows(Q.shape[2], K.shape[2]).dense
    limits = isinstance(window, int) and not (isinstance(longest, int) and longest <= window)
    return OwnAttention(
        scale=float(scale) if isinstance(scale, int | float) else Q.shape[-1] ** -0.5,
        capped=options.get("softcap") is not None,
        sink=options.get("s_aux") is not None,
        added=added is not None and bool(added.any()),
        window=window if limits else None,
        hides=table is not None and not bool(table.all()),
    )


# --- dense attention in all layers ---


def _problems(model: Any, parts: Sequence[HFPart]) -> dict[str, str]:
    """The layers in which dense attention of attnworks does not compute what the model does, and how it differs."""
    runs = runs_of(model)
    with running(model):
        expected = outputs_of(runs)
        with attention_hook(_silence), observe_interface(model):
            effect = distance(runs[0](), expected[0])
    if _problem(model, parts, expected, effect) is None:
        return {}
    found = {_path(part): _problem(model, [part], expected, effect) for part in parts}
    return {path: problem for path, problem in found.items() if problem is not None}


def _silence(*call: Any) -> Tensor:
    return torch.zeros_like(call[5])


def _problem(model: Any, parts: Sequence[HFPart], expected: Sequence[Tensor], effect: float) -> str | None:
    try:
        with running(model), _dense(model, parts):
            found = [run() for run in runs_of(model)[: len(expected)]]
    except Exception as error:
        return f"cannot take the place of attention that does not run with it ({short_message(error)})"
    error = max(distance(one, other) for one, other in zip(found, expected, strict=True))
    if error <= allowed_error(effect, expected[0].dtype):
        return None
    return f"cannot take the place of attention that is no softmax of its scores (outputs would differ by {error:.1e})"


@contextmanager
def _dense(model: nn.Module, parts: Sequence[HFPart]) -> Iterator[None]:
    """Within this context these layers have dense attention of attnworks, if they have no mechanisms yet."""
    device, changed = next(model.parameters()).device, list[Any]()
    try:
        for part in parts:
            (heads, k, v), attention = part.geometry(), part.place()[2]
            if head_groups_of(attention) is None:
                changed.append(attention)
                set_groups(attention, HeadGroups(grouped(("dense",) * heads), k, v).to(device))
        yield
    finally:
        for attention in changed:
            remove_groups(attention)


# --- mechanisms ---


def hf_scale(model: nn.Module, slot: Slot) -> float | None:
    """The factor of Q K^T in the scores of a layer; None if it is not known."""
    own = own_attention_of(model).get(hf_layers(model)[slot].place()[1].path)
    return None if own is None else own.scale


def hf_refusal_to_swap(model: nn.Module, slot: Slot, by_head: Sequence[str]) -> str | None:
    """Why a layer cannot have these mechanisms, as words after "a mechanism that"; None if it can.

    Heads that keep their mechanism are not asked.
    """
    if reason := missing_layer_reason(model, slot):
        return f"would be in {reason}"
    part = hf_layers(model)[slot]
    _, layout, attention = part.place()
    now = _now(attention, part.heads)
    new = [(head, MechanismSpec.parse(spec)) for head, spec in enumerate(by_head) if spec != now[head]]
    if not new:
        return None
    if not layout.interface:
        return NO_INTERFACE
    own = own_attention_of(model).get(layout.path)
    if own is None:
        return "would be in a layer whose attention cannot be replaced"
    if own.problem is not None:
        return own.problem
    lost = without_queries(layout)
    reasons = (LOST if head in lost and spec.kind.by_content else _unfit(spec, slot, own) for head, spec in new)
    return next((reason for reason in reasons if reason is not None), None)


def _now(attention: nn.Module, heads: int) -> tuple[str, ...]:
    groups = head_groups_of(attention)
    return ("dense",) * heads if groups is None else groups.by_head()


def _unfit(spec: MechanismSpec, slot: Slot, own: OwnAttention) -> str | None:
    """Why a mechanism cannot compute what a layer does besides softmax attention."""
    kind, tables = spec.kind, "dense" in spec.kind.supported_masks
    if spec.name == "dense":
        return None
    if kind.by_content and own.capped:
        return "cannot cap its scores, as the layer does"
    if kind.by_content and own.sink:
        return "has no sink logit in its softmax, as the layer has"
    if own.added and not tables:
        return NO_SCORES
    if own.window is not None and not tables:
        return f"cannot keep to the window of {own.window} tokens that the layer has"
    if own.hides and not tables:
        return SEES_MORE
    if own.window is not None and slot.causal and counts_from_first(spec):
        return f"counts positions from the first one, which the layer forgets after {own.window} tokens"
    return None
