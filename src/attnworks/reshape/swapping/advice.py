"""Which attention mechanisms could take the place of others, what each would cost, and the best mix of them."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from attnworks.attention import MECHANISMS, Geometry, MechanismSpec
from attnworks.attention.contract import option_names
from attnworks.core.checks import integer
from attnworks.core.display import rich_html
from attnworks.core.errors import UsageError
from attnworks.core.folders import with_sha256
from attnworks.core.places import Slot
from attnworks.core.timing import Interval, interleave_within
from attnworks.models.modes import inference_mode
from attnworks.models.multihead import MultiHead
from attnworks.reshape.contract import ReshapeContext
from attnworks.reshape.long_texts import TrialText
from attnworks.reshape.surgery import attention_parts, groups_in, mechanisms_of, with_mechanisms
from attnworks.reshape.swapping.mixes import Mix, Option, best_mixes
from attnworks.reshape.swapping.trials import ByHead, Present, SwapLayer, SwapTrial, swap_layers, try_mechanisms
from attnworks.traces.subject import Subject

MAX_TIMED_LENGTH = 2**15
"""The largest length that is timed; dense attention, which is timed too, takes minutes beyond it."""
OLD, NEW = "old", "new"
KEEP_LAYER = ""
"""The name of the option that leaves a layer as it is."""
WORTHWHILE_TIME_SHARE = 0.95
"""A mechanism that takes more than this share of the time of a layer is not an option there."""
CANDIDATE_WINDOWS, CANDIDATE_BLOCKS = (32, 64, 128, 256), (16, 32, 64)
SEEN_BLOCKS = 8
"""Of BigBird, with a window of one block: 2 global, 3 of the window, 3 random ones."""


@dataclass(frozen=True)
class RefusedMix:
    """The losses that kept the fastest mix from being chosen: on texts of at most `tokens` tokens, before and after."""

    tokens: int
    before: float
    after: float


@dataclass(frozen=True)
class Advice:
    """The trials of each layer, and the cheapest mix of mechanisms within the bounds.

    length      positions at which time was measured, and FLOPs predicted
    tried_at    tokens of the longest text on which errors and `loss` were measured
    present     the mechanisms that every layer has now, and their cost
    chosen      layer -> mechanism, of layers that change
    error       root mean square over the layers of the model of the relative error of attention
    loss        of the model without any change, on the texts of at most `tried_at` tokens
    rise        of that loss with the mix
    time_ratio  seconds of all attention cores after / before
    time_interval  95 % interval of it: the ends of the layers' intervals, weighted by their times. Layers are measured
                   apart, so that it is wider than it needs to be
    sentence_loss, sentence_rise  the same on sentences as they are, where `loss` is that of sentences joined into
                                  longer texts; None elsewhere
    model_time_ratio  seconds of the whole model after / before, on a text of about that length; None if there is no
                      such text, or nothing changes
    model_time_interval  95 % interval of it
    model_time_least  the least that model_time_ratio can be if the model saves only what its attention cores save, at
                      the lower end of time_interval; a smaller ratio is an error of measurement
    refused     the losses of the fastest mix within the error, if they rise too much
    notes       what to know about these numbers, in sentences
    model       name or folder of the model
    max_error   the largest error, and the largest relative rise of the loss, that were allowed
    command     that makes a model with the mix; None if nothing changes
    """

    length: int
    tried_at: int
    present: tuple[Present, ...]
    trials: tuple[SwapTrial, ...]
    chosen: dict[str, str]
    error: float
    loss: float
    rise: float
    time_ratio: float
    time_interval: Interval
    sentence_loss: float | None = None
    sentence_rise: float | None = None
    model_time_ratio: float | None = None
    model_time_interval: Interval | None = None
    model_time_least: float | None = None
    refused: RefusedMix | None = None
    notes: tuple[str, ...] = ()
    model: str = ""
    max_error: float = 0.02
    command: str | None = None

    def to_json(self) -> dict[str, Any]:
        """All fields in nested dicts and lists, with their SHA-256, as `attnworks.report` reads them again."""
        return with_sha256(asdict(self))

    def plot(self, path: str | os.PathLike[str]) -> None:
        """Write a picture of error against speed to this file, which ends in .svg."""
        from attnworks.reshape.swapping.picture import draw_advice

        draw_advice(self, Path(path))

    def __rich__(self) -> Any:
        from attnworks.reshape.swapping.render import advice_shown

        return advice_shown(self)

    def _repr_html_(self) -> str:
        return rich_html(self)


def find_advice(
    context: ReshapeContext, to: Sequence[str] = (), *, max_error: float = 0.02, length: int | None = None
) -> Advice:
    """Which mechanisms could be in which layers, and the mix of them that saves most time within the bounds.

    Every layer keeps what it has or gets one of `to`, by default `default_candidates`; layers that share their weights
    get the same. Costs are measured seconds of
    the attention cores at `length`, errors are relative ones of attention on the text that is read. Of the mixes
    that nothing beats in both (`best_mixes`), the cheapest is taken whose root mean square error over all layers is at
    most max_error; then the loss of the model with this mix may rise by at most the share max_error (by max_error
    itself, where losses are distances to the model before). If it rises more, the cheapest mix with at most half the
    error is next, and so on; keeping everything is last. Where `length` is above the mean number of tokens, passages
    are joined into texts of that length: errors are measured on those, and losses on both.
    """
    text, layers = _text(context, length), swap_layers(context.model)
    specs = [str(MechanismSpec.parse(spec)) for spec in to] or default_candidates(layers, text.asked, text.longest)
    wanted = {
        slot: {spec: (spec,) * len(layer.now) for spec in specs if (spec,) * len(layer.now) != layer.now}
        for slot, layer in layers.items()
    }
    present, trials = try_mechanisms(text.text_loss, wanted, text.asked, tell=context.tell)
    options = _options(present, trials, {str(slot): tuple(map(str, layer.alike)) for slot, layer in layers.items()})
    mixes = [mix for mix in _expanded(options) if mix.error <= len(present) * max_error**2]
    nothing = Mix(sum(layer.seconds for layer in present), 0.0, {})
    before = text.losses(context.subject)
    found, refused = _cheapest_that_holds(context, text, mixes, before, max_error)
    mix, rises = found or (nothing, [0.0] * len(before))
    advice = _advice(text, present, trials, mix, _changes(mix), before, rises)
    notes = (*text.notes, *_untrained(trials))
    advice = replace(advice, refused=refused, notes=notes, model=context.subject.name, max_error=max_error)
    return _with_model_time(advice, context, text) if advice.chosen else advice


def trial_of(context: ReshapeContext, wanted: Mapping[Slot, ByHead], length: int | None = None) -> Advice:
    """The same numbers for given mechanisms; UsageError where a layer cannot have one."""
    text = _text(context, length)
    names = {str(slot): " ".join(by_head if len({*by_head}) > 1 else by_head[:1]) for slot, by_head in wanted.items()}
    given = {slot: {names[str(slot)]: by_head} for slot, by_head in wanted.items()}
    present, trials = try_mechanisms(text.text_loss, given, text.asked, tell=context.tell)
    for trial in trials:
        if trial.reason is not None:
            asked, got = f"{trial.spec} in {trial.slot}", f"one that {trial.reason}"
            raise UsageError(asked, "a mechanism that fits", got, "choose another")
    seconds = {layer.slot: layer.seconds for layer in present} | {trial.slot: trial.seconds or 0.0 for trial in trials}
    mix = Mix(sum(seconds.values()), sum((trial.error or 0.0) ** 2 for trial in trials), names)
    before = text.losses(context.subject)
    rises = _rises(context, text, before, wanted)
    return _advice(text, present, trials, mix, names, before, rises)


def _text(context: ReshapeContext, length: int | None) -> TrialText:
    asked = max(2, context.length) if length is None else length
    check_length(asked)
    return TrialText.of(context.calibration, context.length, asked)


def _advice(
    text: TrialText,
    present: Sequence[Present],
    trials: Sequence[SwapTrial],
    mix: Mix,
    chosen: dict[str, str],
    before: Sequence[float],
    rises: Sequence[float],
) -> Advice:
    joined, whole = len(before) > 1, sum(layer.seconds for layer in present)
    return Advice(
        length=text.asked,
        tried_at=text.longest,
        present=tuple(present),
        trials=tuple(trials),
        chosen=chosen,
        error=math.sqrt(mix.error / max(1, len(present))),
        loss=before[-1],
        rise=rises[-1],
        time_ratio=mix.cost / whole if present else 1.0,
        time_interval=_time_interval(present, trials, chosen),
        sentence_loss=before[0] if joined else None,
        sentence_rise=rises[0] if joined else None,
    )


def _time_interval(present: Sequence[Present], trials: Sequence[SwapTrial], chosen: Mapping[str, str]) -> Interval:
    """Of the time of all attention cores after / before: the ends of each layer's, weighted by its time."""
    chosen_trials = [trial for trial in trials if chosen.get(trial.slot) == trial.spec]
    intervals = {trial.slot: trial.time_interval or (1.0, 1.0) for trial in chosen_trials}
    whole = sum(layer.seconds for layer in present)
    low, high = (
        sum(layer.seconds * intervals.get(layer.slot, (1.0, 1.0))[end] for layer in present) / whole if present else 1.0
        for end in (0, 1)
    )
    return low, high


Options = dict[tuple[str, ...], list[Option]]
"""Layers that share their weights, mostly one alone -> what they may have. Costs and squared errors are sums."""


def _options(present: Sequence[Present], trials: Sequence[SwapTrial], alike: Mapping[str, tuple[str, ...]]) -> Options:
    """The options of each layer: what it has, and what is measurably faster."""
    seconds, tried = {layer.slot: layer.seconds for layer in present}, {(t.slot, t.spec): t for t in trials}
    options: Options = {}
    for slots in dict.fromkeys(alike[slot] for slot in seconds):
        options[slots] = [Option(KEEP_LAYER, sum(seconds[slot] for slot in slots), 0.0)]
        for spec in [spec for slot, spec in tried if slot == slots[0]]:
            of_all = [tried[slot, spec] for slot in slots]
            if all(_is_worthwhile(trial, seconds[trial.slot]) for trial in of_all):
                cost, error = sum(t.seconds or 0.0 for t in of_all), sum((t.error or 0.0) ** 2 for t in of_all)
                options[slots].append(Option(spec, cost, error))
    return options


def _is_worthwhile(trial: SwapTrial, now: float) -> bool:
    """Whether a mechanism is measurably faster than what the layer has, in `now` seconds."""
    if trial.error is None or trial.seconds is None or trial.time_interval is None:
        return False
    return trial.seconds <= WORTHWHILE_TIME_SHARE * now and trial.time_interval[1] < 1


def _expanded(options: Options) -> Iterator[Mix]:
    """The best mixes, with a choice for every single layer."""
    layers = {slots[0]: slots for slots in options}
    for mix in best_mixes({slots[0]: of_layers for slots, of_layers in options.items()}):
        chosen = {slot: spec for first, spec in mix.chosen.items() for slot in layers[first]}
        yield mix._replace(chosen=chosen)


def _cheapest_that_holds(
    context: ReshapeContext, text: TrialText, mixes: Sequence[Mix], before: Sequence[float], max_error: float
) -> tuple[tuple[Mix, list[float]] | None, RefusedMix | None]:
    """The first mix, in the order of `find_advice`, whose losses rise within the limits, and their rises.

    Also the loss of the first mix that was over its limit: that of long texts rather than that of sentences.
    """
    relative, refused = context.calibration.objective.relative, None
    may_rise = [max_error * (1 if relative else abs(loss)) for loss in before]
    for mix in _by_halves(mixes):
        context.tell("measuring a mix", 0, 1)
        rises = _rises(context, text, before, whole_layers(context.model, _changes(mix)))
        # `not <=` instead of `>`, so that NaN is over the limit
        over = [place for place, rise in enumerate(rises) if not rise <= may_rise[place]]
        if not over:
            return (mix, rises), refused
        worst = over[-1]
        refused = refused or RefusedMix(text.lengths[worst], before[worst], before[worst] + rises[worst])
    return None, refused


def _changes(mix: Mix) -> dict[str, str]:
    """Layer -> mechanism, of layers that change."""
    return {slot: spec for slot, spec in mix.chosen.items() if spec != KEEP_LAYER}


def _by_halves(mixes: Sequence[Mix]) -> Iterator[Mix]:
    """From cheap to expensive, each with at most half the error (a quarter of the squared error) of the last one."""
    most = math.inf
    for mix in mixes:
        if mix.error <= most:
            yield mix
            most = mix.error / 4


def _rises(
    context: ReshapeContext, text: TrialText, before: Sequence[float], wanted: Mapping[Slot, ByHead]
) -> list[float]:
    """By how much the losses of the text rise in a model with these mechanisms."""
    if not wanted:
        return [0.0] * len(before)
    return [new - old for new, old in zip(text.losses(_subject(context, wanted)), before, strict=True)]


def _subject(context: ReshapeContext, wanted: Mapping[Slot, ByHead]) -> Subject:
    return context.subject.with_model(swapped(context.model, wanted).eval())


def _with_model_time(advice: Advice, context: ReshapeContext, text: TrialText) -> Advice:
    """The time of the whole model too, on one text; a note if no text is long enough, or if it cannot be right."""
    if not text.long_enough:
        return replace(advice, notes=(*advice.notes, "No text is long enough to time the whole model."))
    old, new = context.subject, _subject(context, whole_layers(context.model, advice.chosen))
    longest = text.text_loss.text
    place = max((place for batch in longest.batches for place in batch), key=lambda place: len(longest.sides[0][place]))
    batch = replace(longest, batches=[[place]]).batch(0)[0].to(old.device)
    with inference_mode(context.model):
        race = interleave_within({OLD: lambda: old.run(batch), NEW: lambda: new.run(batch)})
    attention = min(1.0, sum(layer.seconds for layer in advice.present) / race.median(OLD))
    ratio, least = race.time_ratio(NEW, to=OLD), 1 - attention * (1 - advice.time_interval[0])
    doubt = (
        f"The whole model was measured to save {100 * (1 - ratio):.2g} % of its time, but its attention accounts for "
        f"at most {100 * (1 - least):.2g} %: go by the interval, or measure again on an idle machine."
    )
    return replace(
        advice,
        model_time_ratio=ratio,
        model_time_interval=race.time_interval(NEW, to=OLD),
        model_time_least=least,
        notes=(*advice.notes, *([doubt] if ratio < least else [])),
    )


def _untrained(trials: Sequence[SwapTrial]) -> list[str]:
    """A note about mechanisms that begin with random parameters."""
    specs = [spec for trial in trials if trial.error is not None for spec in trial.spec.split()]
    names = sorted({MechanismSpec.parse(spec).name for spec in specs})
    found = [name for name in names if [*MechanismSpec(name).build(Geometry(1, 2, 2)).parameters()]]
    return [f"Parameters of {' and '.join(found)} are random before healing, and so are the errors."] if found else []


def default_candidates(layers: Mapping[Slot, SwapLayer], length: int, longest: int = 0) -> list[str]:
    """Mechanisms that take fewer FLOPs at this length than the present ones, in at least one layer.

    Windows of 32 to 256 tokens to each side, BigBird in blocks of 16 to 64, and every other registered mechanism with
    its own defaults; one that is made for a length is made for this one, and for the longest text.
    """
    specs = [f"window:window={window}" for window in CANDIDATE_WINDOWS if 2 * window + 1 < length]
    specs += [f"bigbird:window={block},block={block}" for block in CANDIDATE_BLOCKS if SEEN_BLOCKS * block < length]
    for name in (name for name in MECHANISMS if name not in ("window", "bigbird")):
        bounded = "length" in option_names(MECHANISMS[name])
        specs.append(f"{name}:length={max(length, longest)}" if bounded else name)
    return [spec for spec in specs if any(_saves(spec, layer, length) for layer in layers.values())]


def _saves(spec: str, layer: SwapLayer, length: int) -> bool:
    by_head = (spec,) * len(layer.now)
    if layer.now == by_head or layer.refusal(by_head) is not None:
        return False
    groups = layer.groups(by_head, next(layer.model.parameters()))
    return layer.flops(groups, length) < layer.flops(layer.present(), length)


def whole_layers(model: nn.Module, chosen: Mapping[str, str]) -> dict[Slot, ByHead]:
    """The same mechanism for all heads of each of these layers."""
    now = mechanisms_of(model, cross=True)
    slots = {Slot.parse(name): spec for name, spec in chosen.items()}
    return {slot: (spec,) * len(now[slot]) for slot, spec in slots.items()}


def swapped(model: nn.Module, wanted: Mapping[Slot, ByHead]) -> Any:
    """A copy of the model with these mechanisms, whose new parameters are those of the trials.

    New projections of global tokens start as copies of those of all tokens.
    """
    layers = swap_layers(model)
    with torch.random.fork_rng(devices=[]):
        new = with_mechanisms(model, wanted)
    for slot, part in attention_parts(new, cross=True).items():
        groups = groups_in(part)
        if slot in wanted and groups is not None:
            groups.load_state_dict(layers[slot].groups(wanted[slot], next(model.parameters())).state_dict())
            _start_global_projections(layers[slot].part.attention, part.attention)
    return new


@torch.no_grad()
def _start_global_projections(old: nn.Module | None, new: nn.Module | None) -> None:
    """Copy the projections of all tokens to those of global tokens, where only the new layer has the latter."""
    if not isinstance(old, MultiHead) or not isinstance(new, MultiHead) or old.has_global_projections:
        return
    if new.has_global_projections:
        (W_Q, W_K, W_V, _), biases = old.head_first(), old.head_first_biases()
        for name, W, b in zip("QKV", (W_Q, W_K, W_V), biases, strict=True):
            getattr(new, f"W_{name}g").copy_(W)
            if b is not None:
                getattr(new, f"b_{name}g").copy_(b)


def check_length(length: int) -> None:
    integer("length", length, 2, MAX_TIMED_LENGTH, "4096, for instance")
