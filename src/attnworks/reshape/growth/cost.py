"""What growing will cost: counted, and timed on one pass of each kind, before the long work starts."""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass

from attnworks.core.display import counted
from attnworks.core.places import Slot
from attnworks.models.anatomy import heads_of
from attnworks.reshape.growth.graded import graded_layers, output_of
from attnworks.reshape.growth.pairs import scan_angles
from attnworks.reshape.growth.places import TRYING_PLACES
from attnworks.reshape.growth.score import GrowthTrial, checking_sentences, key_scores
from attnworks.reshape.growth.statistics import SEARCHING_SLICE, GrowthSums, gather_sample
from attnworks.reshape.growth.survey import ANGLES, COPIES, KEYS_OF_COPIES, PAIRS_PASS, PASSES, growable_layers
from attnworks.traces.loss import TextLoss

FITTING, SEARCHING, COMPARING = "fitting the chosen columns", "searching for the step", "comparing ways to grow"
"""Stages after places are chosen. Before: PASSES, ANGLES, PAIRS_PASS, COPIES, KEYS_OF_COPIES and TRYING_PLACES."""
EVALUATIONS_PER_SEARCH = 6
"""Forward passes that a search for the best step takes on average."""
STEP_SEARCH_SENTENCES = 512
"""About this many sentences are used to search for the final step."""
FITS_PER_PAIR = 2
"""How many times as long as a column of keys it takes to fit a frequency pair, which is a complex column."""


@dataclass(frozen=True, kw_only=True)
class GrowthCost:
    """Counts of the work, and the seconds that one unit of each kind took.

    sentences         all sentences of the text, in `batches`
    layers            layers that can grow
    keys              layers for which columns of keys are fitted
    turned            those of them with rotary positions, for which frequency pairs are fitted too
    copies            layers for which a new head is fitted
    places            directions that are tried to choose from; 0 if places are given
    chosen            an upper bound on the places that get more than one column, or that are given
    trial_sentences   sentences on which a direction is tried
    search_sentences  sentences on which the final step is searched
    compared          other methods, if they are compared
    batch             seconds of a backward pass over one batch
    trial             seconds of a forward pass over the `trial_sentences`
    fit               seconds to fit one column of keys for every head of a layer
    scan              seconds to compare the angles of pairs for every head of a layer
    """

    sentences: int
    batches: int
    layers: int
    keys: int
    copies: int
    places: int
    chosen: int
    trial_sentences: int
    search_sentences: int
    compared: int
    batch: float
    trial: float
    fit: float
    turned: int = 0
    scan: float = 0.0

    @property
    def passes(self) -> int:
        """Backward passes over all sentences."""
        return (len(PASSES) if self.copies else 1) + (self.turned > 0)

    @property
    def stages(self) -> dict[str, float]:
        """The seconds that each stage should take, in the order of the stages."""
        search, whole = EVALUATIONS_PER_SEARCH * self.trial, self.batches * self.batch
        fits = self.fit * (self.keys + FITS_PER_PAIR * self.turned)
        pairs = {ANGLES: self.turned * self.scan, PAIRS_PASS: whole}
        final = search * (1 + self.search_sentences / max(1, self.trial_sentences))
        heads = {
            COPIES: self.copies * search,
            PASSES[1]: whole,
            KEYS_OF_COPIES: self.copies * (search + self.fit),
            PASSES[2]: whole,
        }
        return {
            PASSES[0]: whole,
            **(pairs if self.turned else {}),
            **(heads if self.copies else {}),
            TRYING_PLACES: self.places * search + (fits if self.places else 0.0),
            FITTING: self.chosen * (search + (fits / self.keys if self.keys else 0.0)),
            SEARCHING: final,
            COMPARING: self.compared * final,
        }

    @property
    def seconds(self) -> float:
        """What all stages should take together."""
        return sum(self.stages.values())

    def __str__(self) -> str:
        sentences, passes = counted(self.sentences, "sentence"), counted(self.passes, "backward pass")
        directions = counted(self.places + self.copies + self.chosen, "direction")
        return (
            f"Growing reads {sentences}: {passes} over all of them, then about {EVALUATIONS_PER_SEARCH} forward "
            f"passes over {self.trial_sentences:,} of them for each of up to {directions}. "
            f"Estimated time: {in_words(self.seconds)}."
        )


def in_words(seconds: float) -> str:
    """About how long, in the unit that suits it.

    >>> in_words(0.2), in_words(41), in_words(200), in_words(9000)
    ('less than 1 s', '41 s', '3.3 min', '2.5 h')
    """
    if seconds < 1:
        return "less than 1 s"
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def searching_sentences(text_loss: TextLoss) -> slice:
    """Of the sentences to search on, about as many as the final step is searched on."""
    sentences = len(range(sum(map(len, text_loss.text.batches)))[SEARCHING_SLICE])
    return slice(SEARCHING_SLICE.start, None, SEARCHING_SLICE.step * max(1, sentences // STEP_SEARCH_SENTENCES))


def measured_cost(
    text_loss: TextLoss,
    kinds: Collection[str],
    slots: Collection[Slot] | None = None,
    *,
    add: int = 0,
    given: int = 0,
    compared: int = 0,
) -> GrowthCost:
    """The cost of growing by `add` widths where they pay, or at `given` places in the layers `slots`.

    One batch in the middle is run backward, the sentences that directions are tried on run forward once, and one layer
    has its keys fitted to that batch. If it has rotary positions, angles are compared for it.
    """
    layers, _ = growable_layers(text_loss.original.model, slots)
    some = checking_sentences(text_loss)
    sentences = sum(map(len, text_loss.text.batches))
    batch = trial = fit = scan = 0.0
    sums = {slot: GrowthSums() for slot in layers}
    turned: list[Slot] = []
    if layers:
        began = time.perf_counter()
        GrowthTrial(text_loss, some)
        trial = time.perf_counter() - began
        began = time.perf_counter()
        middle = text_loss.text.batch(len(text_loss.text.batches) // 2)
        for layer in graded_layers(text_loss, *middle, {slot: output_of(part) for slot, part in layers.items()}):
            sums[layer.trace.slot].add(layer)
        batch = time.perf_counter() - began
        turned = [slot for slot in layers if sums[slot].may_turn and not slot.crosses] if "keys" in kinds else []
        slot = next((slot for slot in layers if sums[slot].scale is not None), None)
        if slot is not None and {*kinds} & {"keys", "heads"}:
            began = time.perf_counter()
            like = heads_of(layers[slot])[0]
            key_scores(slot, sums[slot].means()[0], gather_sample(text_loss, slot), like, 1)
            fit = time.perf_counter() - began
        for slot in turned[:1]:
            began = time.perf_counter()
            scan_angles(text_loss, slot, output_of(layers[slot]), biased_keys=False)
            scan = time.perf_counter() - began
    copies = (
        sum(of_layer.scale is not None and of_layer.linear for of_layer in sums.values()) if "heads" in kinds else 0
    )
    heads = sum(part.heads for part in layers.values())
    places = 0 if given else heads * len({*kinds} - {"heads"}) + copies
    return GrowthCost(
        sentences=sentences,
        batches=len(text_loss.text.batches),
        layers=len(layers),
        keys=len(layers) if "keys" in kinds else 0,
        copies=copies,
        places=places,
        chosen=given or min(add // 2, places),
        trial_sentences=len(range(sentences)[some]),
        search_sentences=len(range(sentences)[searching_sentences(text_loss)]),
        compared=compared,
        batch=batch,
        trial=trial,
        fit=fit,
        turned=len(turned),
        scan=scan,
    )
