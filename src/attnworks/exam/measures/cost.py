"""Parameters, floating-point operations and bytes of the parts of a model, in closed form and counted."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

from attnworks.attention.heads import HeadWeights
from attnworks.core.errors import UsageError
from attnworks.core.places import Slot
from attnworks.exam.measure import BY_HEAD, BY_LAYER, MEASURES, Measure, ReadingSpec, Sample, Samples
from attnworks.models.anatomy import BlockAnatomy
from attnworks.text.tokens import Batch
from attnworks.traces.subject import Subject


class PartCost(NamedTuple):
    """Parameters, operations and bytes of a part.

    flops    of matrix products, a multiplication and its addition count two; sums, softmax and norms are left out
    bytes    of the parameters and of all inputs and outputs of matrix products, in the dtype of the weights
    """

    parameters: int
    flops: int
    bytes: int


def attention_cost(weights: HeadWeights, i: int, j: int) -> PartCost:
    """2 (i h e k + j g f (k + v) + i j h (k + v) + i h v e) FLOPs for i queries, j keys, h heads and g groups of keys.

    Source: S0.1, S0.25. Keys and values that heads share are projected once and counted once.
    Departs: every score is counted, also those that a causal mask hides.
    """
    (h, e, _), f, g = weights.W_Q.shape, weights.W_K.shape[1], weights.groups
    hk, hv = weights.columns()
    gk, gv = (columns * g // max(h, 1) for columns in (hk, hv))
    biased = ((weights.b_Q, hk), (weights.b_K, gk), (weights.b_V, gv), (weights.b_O, e))
    flops = 2 * (i * e * hk + j * f * (gk + gv) + i * j * (hk + hv) + i * hv * e)
    numbers = i * e + j * f + i * hk + j * (gk + gv) + 2 * h * i * j + i * hv + i * e
    parameters = e * hk + f * (gk + gv) + hv * e + sum(columns for b, columns in biased if b is not None)
    return PartCost(parameters, flops, (parameters + numbers) * weights.W_Q.element_size())


def block_cost(anatomy: BlockAnatomy, tokens: int, source: int | None = None) -> dict[str, PartCost]:
    """The cost of a block for one sequence, by part: "self", "cross" (with `source` keys), "mlp", "norm".

    The MLP is the block without attention and norms: each of its matrices [m n] multiplies every token once, with
    2 m n FLOPs, and m + n numbers read and written.
    """
    costs: dict[str, PartCost] = {}
    elsewhere: set[nn.Parameter] = set()
    norms = {p for part in anatomy.parts if part.norm is not None for p in part.norm.parameters()}
    for part in anatomy.parts:
        if part.role == "mlp":
            continue
        if part.weights is None or part.attention is None:
            asked, got = f"the cost of {anatomy.kind} layer {anatomy.layer}", type(part.branch).__name__
            raise UsageError(
                asked, "attention whose weights are known", got, "use measured_flops of attnworks.exam.measures.cost"
            )
        keys = tokens if part.role == "self" or source is None else source
        costs[part.role] = attention_cost(part.weights(), tokens, keys)
        elsewhere |= {*part.attention.parameters(), *part.branch.parameters()}
    mlp = [p for p in anatomy.module.parameters() if p not in elsewhere | norms]
    if any(part.role == "mlp" for part in anatomy.parts):
        matrices = [p for p in mlp if p.dim() == 2]
        flops = 2 * tokens * sum(p.numel() for p in matrices)
        through = sum(tokens * sum(p.shape) * p.element_size() for p in matrices)
        costs["mlp"] = PartCost(_numbers(mlp), flops, _bytes(mlp) + through)
    if norms:
        costs["norm"] = PartCost(_numbers(norms), 0, _bytes(norms))
    return costs


class MeasuredFlops(NamedTuple):
    """FLOPs that were counted while a model ran: in all, and by the name of every module ("" is the model)."""

    total: int
    modules: Mapping[str, int]


def measured_flops(model: nn.Module, run: Callable[[], object]) -> MeasuredFlops:
    """The FLOPs of matrix products during `run()`, counted by torch's dispatcher.

    Departs: torch's counter knows the fused attention of GPUs, but not that of processors
    (`_scaled_dot_product_flash_attention_for_cpu`); its two products are added here, with every score counted.
    Fused attention pads values that are narrower than keys with zeros. These are counted, so that the count exceeds the
    closed form.
    """
    fused: Any = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    flops: dict[Any, Any] = {fused: lambda Q, K, V, *args, **options: sdpa_flop_count(Q, K, V)}
    counter = FlopCounterMode(display=False, custom_mapping=flops)
    trained = [p for p in model.parameters() if p.requires_grad]
    for parameter in trained:  # torch's counter fails without gradients where a parameter is the input of a module
        parameter.requires_grad_(False)
    try:
        with counter, torch.no_grad():
            run()
    finally:
        for parameter in trained:
            parameter.requires_grad_(True)
    counts = {name: sum(by_operator.values()) for name, by_operator in counter.get_flop_counts().items()}
    root = type(model).__name__
    named = {name: counts.get(f"{root}.{name}" if name else root, 0) for name, _ in model.named_modules()}
    return MeasuredFlops(counter.get_total_flops(), named)


def cost_of_sentence(subject: Subject, sentence: Batch) -> dict[str, Any]:
    """Parameters, FLOPs and bytes of every part for a batch of one sentence, and the FLOPs that torch counts.

    Blocks without attention, as in Jamba, have no closed form: they are not among the parts, and the sum is None.
    """
    lengths = {"encoder": sentence.source.ids.shape[1], "decoder": sentence.sides("decoder")[0].ids.shape[1]}
    blocks = subject.blocks or ()
    known = [block for block in blocks if all(part.role == "mlp" or part.weights is not None for part in block.parts)]
    parts = {
        f"{block.kind} {block.layer} {part}": cost._asdict()
        for block in known
        for part, cost in block_cost(block, lengths[block.kind], lengths["encoder"]).items()
    }
    whole = len(known) == len(blocks)
    return {
        "tokens": lengths,
        "parts": parts,
        "predicted_flops": sum(cost["flops"] for cost in parts.values()) if whole else None,
        "counted_flops": measured_flops(subject.model, lambda: subject.run(sentence)).total,
    }


@MEASURES.register("cost")
class CostMeasure(Measure):
    """Parameters, FLOPs and bytes of attention in closed form, for one sequence as long as the longest of the text."""

    name = "cost"
    description = "parameters, FLOPs and bytes of attention"
    cost = "one forward pass of one sentence, counted"

    def declares(self) -> tuple[ReadingSpec, ...]:
        at = f"for {self.context.max_length} tokens"
        quantities = (
            ("parameters", "parameters", "D13"),
            ("flops", f"FLOPs of matrix products {at}", "S0.25"),
            ("bytes", f"bytes of weights, inputs, maps and outputs {at}", "S0.25"),
        )
        return tuple(
            ReadingSpec(f"cost.{prefix}{name}", axes, f"{words}, {whose}", source, fold="constant")
            for prefix, axes, whose in (("", BY_HEAD, "a head's share"), ("layer_", BY_LAYER, "all heads"))
            for name, words, source in quantities
        )

    def weights(self, slot: Slot, weights: HeadWeights) -> Samples:
        cost, heads = attention_cost(weights, self.context.max_length, self.context.max_length), len(weights.W_Q)
        totals = {name: torch.tensor(float(value), dtype=torch.float64) for name, value in cost._asdict().items()}
        shares = {f"cost.{name}": Sample((total / heads).expand(heads)) for name, total in totals.items()}
        return shares | {f"cost.layer_{name}": Sample(total) for name, total in totals.items()}


def _numbers(parameters: Iterable[Tensor]) -> int:
    return sum(p.numel() for p in parameters)


def _bytes(parameters: Iterable[Tensor]) -> int:
    return sum(p.numel() * p.element_size() for p in parameters)
