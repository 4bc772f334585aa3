"""attnworks's own models under examination."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, nn

from attnworks.data.text_batch import Kind, TextBatch
from attnworks.data.vocabulary import EOS
from attnworks.errors import UsageError
from attnworks.models import Observation, Recurrent, Transformer
from attnworks.models.anatomy import BlockAnatomy, own_anatomy
from attnworks.models.head_groups import HeadWeights
from attnworks.objectives.text import Abilities, Outputs
from attnworks.traces.layer import LayerTrace, Slot
from attnworks.traces.subject import Spectator, Stacks, watching_streams


class OwnSubject:
    """A Transformer or a recurrent encoder-decoder of attnworks."""

    def __init__(self, model: Transformer | Recurrent, name: str = "model") -> None:
        self.name, self.model = name, model
        self.blocks: Sequence[BlockAnatomy] | None = own_anatomy(model)
        self.abilities = Abilities(_kind(model), vocabulary=True, end_id=EOS)
        self._readers = weight_readers(self.blocks)

    def again(self, model: nn.Module) -> OwnSubject:
        """The same subject with another model."""
        assert isinstance(model, Transformer | Recurrent)
        return OwnSubject(model, self.name)

    def run(self, batch: TextBatch, spectator: Spectator | None = None, *, scores: bool = False) -> Outputs:
        source, target = batch.source, batch.target
        given: Any = (source.ids, None, source.real, None)
        if self.abilities.kind == "decoder":
            given = (None, source.ids, None, source.real)
        elif target is not None:
            given = (source.ids, target.ids, source.real, target.real)
        if spectator is None:
            hidden = self.model.hidden(*given)
        elif isinstance(self.model, Recurrent) and self.model.attention is None:
            raise UsageError(
                asked=f"attention of {self.name}",
                expected="a model that attends",
                got="a recurrent network without attention",
                remedy="examine one that was built with a mechanism",
            )
        else:
            with watching_streams(stacks_of(self.blocks), batch, spectator):
                hidden = self.model.hidden(*given, observe=self._showing(batch, spectator))
        return Outputs(hidden, self.model.scores(hidden) if scores else None)

    def _showing(self, batch: TextBatch, spectator: Spectator):
        def show(seen: Observation) -> Tensor | None:
            return spectator.attention(own_trace(seen, batch, self._readers.get(Slot.parse(seen.slot))))

        return show


def own_trace(seen: Observation, batch: TextBatch, read_weights: Callable[[], HeadWeights] | None) -> LayerTrace:
    slot = Slot.parse(seen.slot)
    queries, keys = batch.sides(slot.kind)
    return LayerTrace(
        slot, seen.Q, seen.K, seen.V, seen.Y, seen.mask, seen.scale, queries, keys,
        X=seen.X, Z=seen.Z, read_weights=read_weights, bilinear=seen.scale is not None, weigh=lambda: seen.P,
        scoring=seen.scoring,
    )  # fmt: skip


def weight_readers(blocks: Sequence[BlockAnatomy] | None) -> dict[Slot, Callable[[], HeadWeights]]:
    """What reads the weights of each attention layer as they are when it is called."""
    return {
        Slot("cross" if part.role == "cross" else block.kind, block.layer): part.weights
        for block in blocks or ()
        for part in block.parts
        if part.weights is not None
    }


def stacks_of(blocks: Sequence[BlockAnatomy] | None) -> Stacks:
    if blocks is None:
        return {}
    kinds: tuple[Kind, ...] = ("encoder", "decoder")
    by_kind: dict[Kind, list[nn.Module]] = {
        kind: [block.module for block in blocks if block.kind == kind] for kind in kinds
    }
    return {kind: modules for kind, modules in by_kind.items() if modules}


def _kind(model: nn.Module) -> str:
    if isinstance(model, Recurrent):
        return "encoder-decoder"
    assert isinstance(model, Transformer)
    sides = [name for name, stack in (("encoder", model.encoder), ("decoder", model.decoder)) if len(stack)]
    return "-".join(sides)
