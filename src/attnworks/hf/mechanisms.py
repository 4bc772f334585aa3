"""Give attention layers of Hugging Face models mechanisms of attnworks."""

from __future__ import annotations

from typing import Any

from attnworks.attention.heads import HeadGroups, carry_over, grouped
from attnworks.hf.anatomy import forget_layout, hf_layers, parts_unknown
from attnworks.hf.attention import register_head_groups
from attnworks.hf.head_modules import MECHANISMS_ATTRIBUTE, head_groups_of
from attnworks.hf.heads import MECHANISMS_ENTRY
from attnworks.models.surgery import MechanismsBySlot


def build_in_mechanisms(model: Any, wanted: MechanismsBySlot) -> None:
    """Give layers of a Hugging Face model these mechanisms, in place, and write that into its config."""
    layers = hf_layers(model) if wanted else {}
    if wanted and not layers:
        raise parts_unknown(model)
    for slot, specs in wanted.items():
        _build_in(layers[slot].place()[2], layers[slot].place()[1].widths, specs)
    described = {str(slot): list(specs) for slot, specs in wanted.items()}
    model.config.attnworks = {**getattr(model.config, MECHANISMS_ENTRY, {}), **described}
    if model.config.attnworks:
        model.set_attn_implementation(register_head_groups())
    forget_layout(model)


def _build_in(attention: Any, widths: tuple[int, int], specs: Any) -> None:
    old = head_groups_of(attention)
    groups = HeadGroups(grouped(specs), *widths).to(next(attention.parameters())).train(attention.training)
    if old is not None:
        carry_over(old, groups)
    setattr(attention, MECHANISMS_ATTRIBUTE, groups)
