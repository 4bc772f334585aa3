"""Run a model on the texts of probes: what each head attends to there, and how well the model copies."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from attnworks.core.places import HeadId, Kind, Slot
from attnworks.exam.measure import BY_HEAD, BY_LAYER, PlacedSample, ReadingSpec, Sample
from attnworks.exam.probes.roles import heads_by_probe
from attnworks.exam.probes.texts import PERIOD, ProbeText, copied_needles, repeated_tokens
from attnworks.exam.reading import Readings
from attnworks.exam.statistics import Accumulator
from attnworks.models.modes import inference_mode
from attnworks.text.tokens import NO_WORD
from attnworks.traces.edits import HeadsOffHook
from attnworks.traces.layer import LayerTrace
from attnworks.traces.maps import maps_of
from attnworks.traces.subject import LayerHook, Subject

FARTHEST = 16
"""The largest distance at which offsets are probed; copies are farther away wherever the model has enough positions."""
OLSSON, WU, ELHAGE = "Olsson et al. 2022", "Wu et al. 2024", "Elhage et al. 2021"
OFFSETS = range(-FARTHEST, FARTHEST + 1)
REPEATED, EVEN = "repeated random tokens", "mean weight of the same keys if attention were even"

SPECS = {
    spec.name: spec
    for spec in (
        ReadingSpec(
            "probes.offset", (*BY_HEAD, "offset"), "mean attention at key - query on random tokens", ELHAGE,
            ticks={"offset": tuple(map(float, OFFSETS))},
        ),
        ReadingSpec(
            "probes.offset_chance", (*BY_LAYER, "offset"), EVEN, ELHAGE,
            ticks={"offset": tuple(map(float, OFFSETS))},
        ),
        ReadingSpec("probes.duplicate", BY_HEAD, f"mean attention to the same token before, on {REPEATED}", OLSSON),
        ReadingSpec("probes.induction", BY_HEAD, f"mean attention to the token after it, on {REPEATED}", OLSSON),
        ReadingSpec("probes.retrieval", BY_HEAD, "mean attention to the next token of a needle that is copied", WU),
        *(
            ReadingSpec(f"probes.{name}_chance", BY_LAYER, EVEN, OLSSON)
            for name in ("duplicate", "induction", "retrieval")
        ),
        ReadingSpec("probes.first_loss", (), "mean loss on random tokens, before they are repeated", OLSSON),
        ReadingSpec("probes.copy_loss", (), "mean loss on random tokens when they are repeated", OLSSON),
        ReadingSpec("probes.copy_loss_without", (), "the same loss with the induction heads off", OLSSON),
        ReadingSpec("probes.needle_loss", (), "mean loss on a needle when it is copied", WU),
    )
}  # fmt: skip
"""The readings of probes by name."""


@dataclass(frozen=True, eq=False)
class Probes:
    """What heads do on the texts of probes, and how well the model copies.

    readings     `SPECS`, of the kind of attention that the model has
    """

    readings: Readings

    def heads(self, role: str) -> tuple[HeadId, ...]:
        """The heads with a role: "previous", "duplicate", "induction", "retrieval" or an offset, as "offset -2"."""
        return self.roles().get(role, ())

    def roles(self) -> dict[str, tuple[HeadId, ...]]:
        """Role -> the heads that have it."""
        return heads_by_probe(self.readings)

    @property
    def copy_loss(self) -> float | None:
        """The mean loss on repeated random tokens; None for a model without logits."""
        return self._loss("probes.copy_loss")

    @property
    def first_loss(self) -> float | None:
        """The mean loss on random tokens before they are repeated; None for a model without logits."""
        return self._loss("probes.first_loss")

    @property
    def needle_loss(self) -> float | None:
        """The mean loss on a needle that is copied; None for a model without logits or with few positions."""
        return self._loss("probes.needle_loss")

    def _loss(self, name: str) -> float | None:
        found = self.readings.of(name)
        return float(found[0].tensor) if found else None

    def to_json(self) -> dict[str, Any]:
        """The losses, and the heads of every role by name."""
        losses = {"first_loss": self.first_loss, "copy_loss": self.copy_loss, "needle_loss": self.needle_loss}
        return {**losses, "heads": {role: [str(head) for head in heads] for role, heads in self.roles().items()}}


def run_probes(
    subject: Subject, *, seed: int = 0, period: int = PERIOD, advance: Callable[[int], None] = lambda sequences: None
) -> Probes:
    """Run the model on repeated random tokens and on copied needles.

    period     the number of random tokens that are repeated, as in `repeated_tokens`
    advance    called with the number of sequences of each batch

    Holds when: the model has one stack of layers, an encoder or a decoder, and a tokenizer.
    """
    repeated, needles = repeated_tokens(subject, seed=seed, period=period), copied_needles(subject, seed=seed)
    run = _Run(subject, advance)
    run.look(repeated, {"duplicate": 0, "induction": 1}, losses=("first_loss", "copy_loss"), offsets=True)
    if needles is not None:
        run.look(needles, {"retrieval": 1}, losses=(None, "needle_loss"))
    probes = run.found()
    if probes.copy_loss is not None and (heads := probes.heads("induction")):
        run.losses(repeated, HeadsOffHook(heads), (None, "copy_loss_without"))
        probes = run.found()
    return probes


class _Run:
    """Attention and losses of one model, accumulated over the sequences of its probes."""

    def __init__(self, subject: Subject, advance: Callable[[int], None]) -> None:
        self.subject, self.advance = subject, advance
        self.kind: Kind = "decoder" if subject.abilities.kind == "decoder" else "encoder"
        self.accumulator = Accumulator(SPECS.values())

    def found(self) -> Probes:
        """All readings so far; layers whose heads were all cut have empty rows."""
        return Probes(
            self.accumulator.readings({slot: 0 for slot, part in self.subject.layers.items() if not part.heads})
        )

    def look(
        self, text: ProbeText, ahead: Mapping[str, int], *, losses: tuple[str | None, str | None], offsets: bool = False
    ) -> None:
        """Attention to the place that each token was copied from, or `ahead` of it; and the losses."""
        hook = _PointedHook(self.accumulator)

        def point(part: slice, tokens: int) -> None:
            hook.pointers = {name: text.original_of(part, tokens, by).unsqueeze(-1) for name, by in ahead.items()}
            if offsets:
                hook.pointers["offset"] = _near(text, part, tokens)

        self.losses(text, hook, losses, point)

    def losses(
        self,
        text: ProbeText,
        hook: LayerHook,
        names: tuple[str | None, str | None],
        point: Callable[[slice, int], None] = lambda part, tokens: None,
    ) -> None:
        """The mean loss of each sequence on what is copied, and on its copy, under these names; None for no name.

        point    called with the sequences of each batch, and its length, before the model runs
        """
        has_loss = self.kind == "decoder" and self.subject.abilities.vocabulary
        with inference_mode(self.subject.model):
            for batch, part in text.batches():
                point(part, batch.source.ids.shape[1])
                outputs = self.subject.run(batch.to(self.subject.device), hook, logits=has_loss)
                if outputs.logits is not None:
                    for name, places in zip(names, (text.originals[part], text.copies[part]), strict=True):
                        if name is not None:
                            sample = Sample(_mean_losses(outputs.logits, batch.source.ids, places))
                            self.accumulator.add(PlacedSample(f"probes.{name}", self.kind, sample))
                self.accumulator.flush()
                self.advance(len(batch))


class _PointedHook(LayerHook):
    """Accumulates the mean attention to some keys of each query, and that of even attention.

    pointers    name -> keys [b i k] of each query, of which each k counts alone; -1 where there is none
    """

    def __init__(self, accumulator: Accumulator) -> None:
        self.accumulator, self.pointers = accumulator, dict[str, Int[Tensor, "b i k"]]()

    def attention(self, trace: LayerTrace) -> Tensor | None:
        if trace.slot.kind == "cross":
            return None
        keys = torch.cat(list(self.pointers.values()), -1).to(trace.Q.device)  # [b i all k]
        found = torch.zeros((*trace.Q.shape[:3], keys.shape[-1]), dtype=torch.float64, device=keys.device)
        visible = torch.zeros(keys.shape[:2], dtype=torch.int64, device=keys.device)
        for piece in maps_of(trace):
            own = piece.P.shape[-2]
            at = keys[piece.sentences, None, :own].clamp_min(0).expand(*piece.P.shape[:3], -1)
            found[piece.sentences, piece.heads, :own] = piece.P.gather(-1, at).double()
            seen = visible[piece.sentences, :own]
            torch.maximum(seen, piece.visible, out=seen)
        there = keys >= 0
        number, even = there.sum(1), (there * _even(keys, visible)).sum(1)  # [b all k]
        mean = (found * there.unsqueeze(1)).sum(2) / number.clamp_min(1).unsqueeze(1)  # [b h all k]
        widths = [own.shape[-1] for own in self.pointers.values()]
        parts = (values.split(widths, -1) for values in (mean, even / number.clamp_min(1), number > 0))
        for name, of_heads, chance, valid in zip(self.pointers, *parts, strict=True):
            self._add(name, trace.slot, of_heads, valid.unsqueeze(1))
            self._add(f"{name}_chance", trace.slot, chance, valid)
        return None

    def _add(self, name: str, slot: Slot, values: Float[Tensor, "b *h k"], valid: Bool[Tensor, "b *#h k"]) -> None:
        if values.shape[-1] == 1:
            values, valid = values.squeeze(-1), valid.squeeze(-1)
        self.accumulator.add(PlacedSample(f"probes.{name}", slot, Sample(values, valid)))


def _even(keys: Int[Tensor, "b i k"], visible: Int[Tensor, "b i"]) -> Float[Tensor, "b i k"]:
    """The weight that even attention gives to these keys: zero where a query may not see them.

    Queries see all keys, or the last ones up to themselves, as in `exam.pointers.Sight`.
    """
    position, number = torch.arange(keys.shape[1], device=keys.device)[:, None], visible.unsqueeze(-1)
    past = (number <= position + 1).all(1, keepdim=True)
    sees = (number > 0) & (~past | ((keys <= position) & (keys > position - number)))
    return sees / number.clamp_min(1).double()


def _near(text: ProbeText, part: slice, tokens: int) -> Int[Tensor, "b i o"]:
    """The keys at every offset of each token of the text, without special tokens; -1 where there is none.

    The distance between a text and its copy, and the next ones, are left out: there, attention to a distance cannot be
    told from attention to the same token or to what followed it.
    """
    rows, offsets = text.rows[part], torch.tensor(OFFSETS)
    keys = torch.arange(tokens)[:, None] + offsets  # [i o]
    found = torch.full((len(rows), *keys.shape), NO_WORD)
    for row, (of, copy, original) in enumerate(zip(rows, text.copies[part], text.originals[part], strict=True)):
        is_text = torch.zeros(tokens, dtype=torch.bool)
        is_text[: len(of)] = ~torch.tensor(of.special)
        there = (keys >= 0) & (keys < tokens) & is_text[keys.clamp(0, tokens - 1)] & is_text[:, None]
        there &= (offsets.abs() - (copy.start - original.start)).abs() > 1
        found[row] = torch.where(there, keys, NO_WORD)
    return found


def _mean_losses(logits: Float[Tensor, "b n w"], ids: Int[Tensor, "b n"], places: tuple[slice, ...]) -> Tensor:
    """-mean log p of the tokens of each place but the first, each from the tokens before it."""
    wide = torch.promote_types(logits.dtype, torch.float32)
    found = [
        F.cross_entropy(own[place.start : place.stop - 1].to(wide), row[place.start + 1 : place.stop].to(logits.device))
        for own, row, place in zip(logits, ids, places, strict=True)
    ]
    return torch.stack(found)
