"""What was done to a model, what was predicted and what was measured."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from attnworks.core.display import counted, rich_html
from attnworks.core.errors import short_number
from attnworks.core.timing import Interval, contains_one
from attnworks.exam.lineage import HeadMap
from attnworks.reshape.losses import Losses, LossesAtLength, describe_loss
from attnworks.reshape.probed import LostRole, ProbedChange

TIME_RATIO = "time_ratio"
"""In the names of facts that are seconds after / before."""
MAX_COUNT = 2**63


@dataclass(frozen=True)
class BeforeAfter:
    """A number before and after."""

    before: int
    after: int

    @property
    def saved(self) -> float:
        """The share that is gone; negative if there is more than before."""
        return 1 - self.after / self.before if self.before else 0.0


@dataclass(frozen=True)
class Figures:
    """A score over the held-out sentences, of the model before, after, and healed if it was."""

    before: float
    after: float
    healed: float | None = None


@dataclass(frozen=True)
class HealReport:
    """Training after a change, with Adam, on batches of `batch_tokens` padded tokens.

    by    what it lowers: "objective", or "distil", the distance to the old model after every block
    """

    steps: int
    learning_rate: float
    batch_tokens: int
    seed: int
    by: str = "objective"


@dataclass(frozen=True, kw_only=True)
class Receipt:
    """One reshape of one model.

    reshape        its registered name
    asked          its options, all that is needed to do it again
    text           source of the sentences, the number for calibration and for evaluation, and for how many of the
                   latter the model itself wrote the target, because there was none
    objective      name of the loss
    healing        steps, learning rate and what was minimised after the change
    done           layer or head -> what was done there, in words or as the name of a mechanism
    parameters     numbers in all weights, before and after
    flops          of attention with its projections, for one sentence of `length` tokens (on either side)
    length         mean number of tokens of a sentence, or the length that was asked for
    loss           on held-out text: before, predicted, after the change, and after healing
    seconds        that the reshape took, with healing and evaluation
    numbers        dtype and device of the computation
    heads          for every layer that lost or gained heads, which head became which
    left_out       place -> why nothing was changed there, for places that an automatic choice considered;
                   also why a ranking or a baseline of a comparison was not measured
    facts          further numbers of this reshape, by name
    loss_at_length of held-out sentences joined to `length` tokens, or as near to it as the text and the model allow;
                   None if no length above that of sentences was asked for
    bytes          of all weights, in the type of the computation
    time           of a forward pass over held-out sentences, as a share of the time before; runs took turns
    time_interval  95 % interval of it; None in old receipts
    scores         BLEU of what the model writes, and 1 - cosine of sentence embeddings to those before
    fingerprint    of all weights before and after: hashes that are equal for models equal bit for bit
    version        of attnworks
    warnings       what one should know before one uses the new model, in whole sentences
    probes         of a causal language model, what its heads do on texts made for a question, and how well it copies;
                   None for other models, for models that are too small for them, and in old receipts
    """

    reshape: str
    asked: dict[str, Any]
    text: dict[str, Any]
    objective: str
    healing: HealReport
    done: dict[str, str]
    parameters: BeforeAfter
    flops: BeforeAfter
    length: int
    loss: Losses
    seconds: float
    numbers: tuple[str, str]
    fingerprint: tuple[str, str]
    version: str
    heads: dict[str, HeadMap] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    facts: dict[str, float] = field(default_factory=dict)
    bytes: BeforeAfter | None = None
    time: float | None = None
    time_interval: tuple[float, float] | None = None
    loss_at_length: LossesAtLength | None = None
    scores: dict[str, Figures] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    probes: ProbedChange | None = None

    def to_json(self) -> dict[str, Any]:
        """All fields, in nested dicts and lists."""
        return asdict(self)

    def __rich__(self) -> Any:
        from attnworks.reshape.render import receipt_shown

        return receipt_shown(self)

    def _repr_html_(self) -> str:
        return rich_html(self)

    def out_of_range(self) -> str | None:
        """The first number that no reshape can produce, in words; None if there is none."""
        changes = {"parameters": self.parameters, "flops": self.flops, **({"bytes": self.bytes} if self.bytes else {})}
        counts: dict[str, float] = {
            "length": self.length,
            "seconds": self.seconds,
            "healing.steps": self.healing.steps,
            "healing.batch_tokens": self.healing.batch_tokens,
            **{f"{name}.{end}": count for name, change in changes.items() for end, count in vars(change).items()},
            **{name: self.facts[name] for name in ("heads_before", "heads_cut") if name in self.facts},
        }
        ratios = ({"time_interval": self.time_interval} if self.time_interval else {}) | self._fact_intervals()
        ends = dict(ratios)
        positive = {
            "healing.learning_rate": self.healing.learning_rate,
            **{name: value for name, value in self.facts.items() if TIME_RATIO in name},
            **{f"{name}[{place}]": end for name, both in ratios.items() for place, end in enumerate(both)},
            **({} if self.time is None else {"time": self.time}),
        }
        losses: dict[str, float | None] = {}
        for name, loss in {"loss": self.loss, "loss_at_length": self.loss_at_length}.items():
            if loss is not None:
                losses |= {f"{name}.{step}": getattr(loss, step) for step in ("before", "predicted", "after", "healed")}
                found = {} if loss.intervals is None else vars(loss.intervals)
                ends |= {f"{name}.intervals.{of}": interval for of, interval in found.items() if interval is not None}
        if self.loss_at_length is not None:
            counts["loss_at_length.tokens"] = self.loss_at_length.tokens
        odd = (
            *(f"{name} {short_number(value)}" for name, value in counts.items() if not 0 <= value <= MAX_COUNT),
            *(f"{name} {value}" for name, value in positive.items() if not 0 < value < math.inf),
            *(f"{name} from {low} to {high}" for name, (low, high) in ends.items() if not low <= high),
            *(f"{name} {value}" for name, value in losses.items() if value is not None and math.isnan(value)),
            *(f"heads of {slot}: {why}" for slot, heads in self.heads.items() if (why := heads.out_of_range())),
            *filter(None, (None if self.probes is None else self.probes.out_of_range(),)),
        )
        return next(iter(odd), None)

    def _fact_intervals(self) -> dict[str, tuple[float, float]]:
        """Intervals of time ratios among the facts, where both ends are there."""
        names = {name.removesuffix("_low") for name in self.facts if TIME_RATIO in name and name.endswith("_low")}
        return {
            name: (self.facts[f"{name}_low"], self.facts[f"{name}_high"])
            for name in names
            if f"{name}_high" in self.facts
        }

    @property
    def lost_roles(self) -> list[LostRole]:
        """The roles of which heads are gone: "induction" and others that the probes of a language model find."""
        return [] if self.probes is None else self.probes.lost(self.heads)

    @property
    def concerns(self) -> list[str]:
        """The warnings, and what the model lost by its probes, in whole sentences."""
        return [*self.warnings, *(() if self.probes is None else self.probes.sentences(self.heads))]

    @property
    def nothing_changed(self) -> bool:
        """Whether nothing was done, and the weights are the same as before, bit for bit."""
        return not self.done and self.fingerprint[0] == self.fingerprint[1]

    @property
    def title(self) -> str:
        """What was done, in a few words: Cut 3 of 24 heads (ranked by ablation)."""
        asked = self.asked
        if self.reshape == "prune":
            before, cut = (round(self.facts.get(name, 0)) for name in ("heads_before", "heads_cut"))
            keep, budget = asked.get("keep"), asked.get("budget")
            how = str(asked.get("heads")) if keep is None and budget is None else f"ranked by {asked.get('by')}"
            how += f", budget {budget}" if budget is not None else ""
            return f"Cut {cut:,} of {counted(before, 'head')} ({how})"
        where = asked.get("heads") or asked.get("where") or asked.get("layers")
        how = f" ({'chosen automatically' if where == 'auto' else where})" if where else ""
        if self.reshape == "grow":
            return f"Grew attention in {counted(len(self.done), 'place')}{how}"
        if self.reshape == "project":
            return f"Replaced {counted(len(self.done), 'head')} by fixed forms{how}"
        if self.reshape == "swap":
            unit = "head" if any(place.count(".") > 1 for place in self.done) else "layer"
            return f"Swapped attention in {counted(len(self.done), unit)}{how}"
        return f"Changed {counted(len(self.done), 'place')} by {self.reshape}{how}"

    @property
    def summary(self) -> str:
        """What was done and what it means: the title, then loss, parameters and speed."""
        found = [describe_loss(self.loss, self.healing.steps, self.objective)]
        if self.loss_at_length is not None:
            long = f"texts of up to {self.loss_at_length.tokens:,} tokens"
            found.append(f"{describe_loss(self.loss_at_length, self.healing.steps, self.objective)} on {long}")
        found += [f"{lost.counted} gone" for lost in self.lost_roles if 2 * lost.lost >= lost.had]
        if self.parameters.after != self.parameters.before:
            saved = self.parameters.saved
            found.append(f"{_percent(abs(saved))} {'fewer' if saved > 0 else 'more'} parameters")
        ratio, at_length = self.facts.get("model_time_ratio"), self._fact_intervals().get("model_time_ratio")
        if ratio is not None:
            found.append(f"{_speed_change(ratio, at_length)} at length {self.length:,}")
        elif self.time is not None:
            found.append(_speed_change(self.time, self.time_interval))
        return f"{self.title}: {', '.join(found)}"


def _percent(share: float) -> str:
    """Two digits, and whole numbers from 10 % on.

    >>> _percent(0.0391), _percent(-0.12), _percent(12.3)
    ('3.9 %', '-12 %', '1,230 %')
    """
    return f"{100 * share:,.0f} %" if abs(share) >= 0.1 else f"{100 * share:.2g} %"


def _speed_change(time_ratio: float, interval: Interval | None) -> str:
    if interval is not None and contains_one(interval):
        return "no measurable change in speed"
    return f"{1 / time_ratio:.3g}x faster" if time_ratio <= 1 else f"{time_ratio:.3g}x slower"


class History(list[Receipt]):
    """The receipts of all reshapes of a model, first to last."""

    def __init__(self, receipts: Iterable[Receipt], model: str) -> None:
        super().__init__(receipts)
        self.model = model

    def to_json(self) -> dict[str, Any]:
        """{"receipts": [...]}."""
        return {"receipts": [receipt.to_json() for receipt in self]}

    def __rich__(self) -> Any:
        from attnworks.reshape.render import history_shown

        return history_shown(self)

    def _repr_html_(self) -> str:
        return rich_html(self)


class Replayed(list[tuple[Receipt, Receipt]]):
    """For every reshape that was applied again, the receipt of then and the receipt of now."""

    def to_json(self) -> dict[str, Any]:
        """{"replayed": [{"then": ..., "now": ...}, ...]}."""
        return {"replayed": [{"then": then.to_json(), "now": now.to_json()} for then, now in self]}

    def __rich__(self) -> Any:
        from attnworks.reshape.render import replayed_shown

        return replayed_shown(self)

    def _repr_html_(self) -> str:
        return rich_html(self)
