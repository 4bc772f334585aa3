"""How much the loss changes without a head."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from attnworks.exam.measure import MEASURES, Declared, Measure, Sample, Samples
from attnworks.traces.layer import Slot


@MEASURES.register("ablation")
class Ablation(Measure):
    """mean_s (L_s(gate = 0) - L_s(gate = 1)) over sentences s, one head of the model off at a time.

    Source: Michel et al. 2019, section 3.2.
    Departs: change of the loss instead of a score of the task; with the objective `embedding`, 1 - cos to the embedding
    of the whole model.
    """

    name = "ablation"
    words = "how much worse the model is without each head"
    cost = "one forward per head"

    def declares(self) -> tuple[Declared, ...]:
        words = "loss without the head minus loss with it; below 0: the head does harm"
        return (Declared("ablation.change", ("layer", "head"), words, "Michel et al. 2019"),)

    def ablated(self, slot: Slot, change: Float[Tensor, "b h"]) -> Samples:
        return {"ablation.change": Sample(change)}
