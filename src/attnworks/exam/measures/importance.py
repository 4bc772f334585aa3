"""The measures `importance` and `ablation`: the gradient by a head's gate, and the loss without the head."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from attnworks.core.places import Slot
from attnworks.exam.measure import BY_HEAD, MEASURES, Measure, ReadingSpec, Sample, Samples

MICHEL = "Michel et al. 2019"


@MEASURES.register("importance")
class Importance(Measure):
    """mean_s |dL_s / d gate| over sentences s, at gates of one that multiply the output of each head before W_O.

    Source: Michel et al. 2019, eq. 2, with the absolute value taken per sentence, before the mean.
    Holds when: to first order, -dL/d gate is what leaving the head out adds to the loss; `ablation` measures that.
    Departs: no normalisation by layer; numbers are in units of the loss.
    """

    name = "importance"
    description = "how much the loss depends on each head, to first order"
    cost = "one forward and backward"

    def declares(self) -> tuple[ReadingSpec, ...]:
        size, signed = "mean |dL/d gate|; 0: the head does not affect the loss", "mean dL/d gate; below 0: more helps"
        return (
            ReadingSpec("importance.gradient", BY_HEAD, size, MICHEL),
            ReadingSpec("importance.gradient_signed", BY_HEAD, signed, MICHEL),
        )

    def gradient(self, slot: Slot, gates: Float[Tensor, "b h"]) -> Samples:
        return {"importance.gradient": Sample(gates.abs()), "importance.gradient_signed": Sample(gates)}


@MEASURES.register("ablation")
class Ablation(Measure):
    """mean_s (L_s(gate = 0) - L_s(gate = 1)) over sentences s, one head of the model off at a time.

    Source: Michel et al. 2019, section 3.2.
    Departs: change of the loss instead of a score of the task; with the objective `embedding`, 1 - cos to the embedding
    of the whole model.
    """

    name = "ablation"
    description = "how much worse the model is without each head"
    cost = "one forward per head"

    def declares(self) -> tuple[ReadingSpec, ...]:
        words = "loss without the head minus loss with it; below 0: the head does harm"
        return (ReadingSpec("ablation.change", BY_HEAD, words, MICHEL),)

    def ablated(self, slot: Slot, change: Float[Tensor, "b h"]) -> Samples:
        return {"ablation.change": Sample(change)}
