"""Paths of real forward passes: own models and those of Hugging Face recomposed, shares against slow loops."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from attnworks.attention import Mask
from attnworks.core.errors import UsageError
from attnworks.core.notation import tolerance
from attnworks.core.places import Slot
from attnworks.exam.linalg.residual import relative_residual
from attnworks.exam.measure import MEASURES, Measure, MeasureContext, PlacedSample
from attnworks.exam.measures.paths import Paths, Rollout
from attnworks.models import PureAttention
from attnworks.models.anatomy import BlockAnatomy, Part
from attnworks.models.layers import LayerNorm
from attnworks.models.multihead import Observation
from attnworks.reshape.surgery import anatomy_of
from attnworks.text.tokens import Tokens
from attnworks.traces.forward import BlockTrace, ForwardTrace, PartTrace
from attnworks.traces.frozen_pass import frozen_norm, frozen_steps, whole_maps
from attnworks.traces.layer import LayerTrace
from attnworks.traces.paths import carried, forward_rounding, paths_by_length
from tests.helpers import assert_close
from tests.model_helpers import D_E, filled, pure_config, randn, the, transformer

BATCH, N, SOURCE = 3, 7, 5
LENGTHS, SOURCE_LENGTHS = (7, 4, 1), (5, 5, 2)


def tokens_of(lengths: tuple[int, ...]) -> Tokens:
    shape = (len(lengths), max(lengths))
    real = torch.arange(shape[1]) < torch.tensor(lengths)[:, None]
    nothing = torch.full(shape, -1)
    return Tokens(nothing, real, torch.zeros(shape).bool(), nothing, None, torch.zeros(shape))


class Handed(NamedTuple):
    """What an attention layer computed with; P where it is not scale Q K^T under the mask alone."""

    Q: Tensor
    K: Tensor
    V: Tensor
    Y: Tensor
    mask: Mask
    scale: float | None
    P: Tensor | None = None


class Watched:
    """One forward pass, seen through hooks: blocks and branches in the order of their calls."""

    def __init__(self, model: nn.Module) -> None:
        self.blocks: tuple[BlockAnatomy, ...] = the(anatomy_of(model))
        self.calls: dict[nn.Module, list[tuple[Tensor, Tensor]]] = {}
        self.handed: dict[nn.Module, list[Handed]] = {}

    @contextmanager
    def watching(self) -> Iterator[None]:
        def called(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            first = output[0] if isinstance(output, tuple) else output
            read = args[0] if args else kwargs["hidden_states"]
            self.calls.setdefault(module, []).append((read.detach(), first.detach()))

        modules = {block.module for block in self.blocks}
        modules |= {part.branch for block in self.blocks for part in block.parts}
        hooks = [module.register_forward_hook(called, with_kwargs=True) for module in modules]
        yield
        for hook in hooks:
            hook.remove()

    def observe(self, seen: Observation) -> None:
        at = seen.slot
        kind, role = ("decoder", "cross") if at.kind == "cross" else (at.kind, "self")
        (module,) = [
            the(part.attention)
            for block in self.blocks
            for part in block.parts
            if (block.kind, block.layer, part.role) == (kind, at.layer, role)
        ]
        self.handed.setdefault(module, []).append(Handed(seen.Q, seen.K, seen.V, seen.Y, seen.mask, seen.scale))

    def trace(self, kind: str, tokens: Tokens, source: Tokens | None = None) -> ForwardTrace:
        return ForwardTrace(
            kind,  # pyright: ignore[reportArgumentType]
            tuple(self._block(block, tokens, source) for block in self.blocks if block.kind == kind),
            tokens,
        )

    def _block(self, block: BlockAnatomy, tokens: Tokens, source: Tokens | None) -> BlockTrace:
        entry, exit = self.calls[block.module].pop(0)
        x, parts = entry, []
        for part in block.parts:
            output = self.calls[part.branch].pop(0)[1].reshape(x.shape)
            attention = None if part.attention is None else self._layer(block, part, tokens, source)
            parts.append(PartTrace(part, entry if block.parallel else x, output, attention))
            x = x + output if block.skip else output
            x = part.norm(x).detach() if block.norm == "post" and part.norm is not None else x
        assert_close(x, exit)
        return BlockTrace(block, entry, exit, tuple(parts))

    def _layer(self, block: BlockAnatomy, part: Part, tokens: Tokens, source: Tokens | None) -> LayerTrace:
        Q, K, V, Y, mask, scale, P = self.handed[the(part.attention)].pop(0)
        slot = Slot("cross" if part.role == "cross" else block.kind, block.layer)
        keys, weights = the(source) if part.role == "cross" else tokens, the(part.weights)()
        return LayerTrace(slot, Q, K, V, Y, mask, scale, tokens, keys, weights=weights, weigh=lambda: the(P))


def pure(dtype: torch.dtype = torch.float64, layers: int = 3, **changes: Any) -> ForwardTrace:
    settings = {"skip": True, "mlp": False, "norm": False} | changes
    model, tokens = filled(PureAttention(pure_config(layers=layers, **settings))).to(dtype), tokens_of(LENGTHS)
    watched = Watched(model)
    with watched.watching(), torch.no_grad():
        model(randn(BATCH, N, 7, dtype=dtype), Mask(tokens.real), watched.observe)
    return watched.trace("encoder", tokens)


def own(kind: str, dtype: torch.dtype = torch.float64, **changes: Any) -> ForwardTrace:
    model, target, source = transformer(dtype, **changes), tokens_of(LENGTHS), tokens_of(SOURCE_LENGTHS)
    watched = Watched(model)
    words = torch.arange(BATCH * N).reshape(BATCH, N) % 11
    with watched.watching(), torch.no_grad():
        model(words[:, :SOURCE], words, source.real, target.real, watched.observe)
    return watched.trace(kind, target if kind == "decoder" else source, source)


OWN: dict[str, Callable[..., ForwardTrace]] = {
    "pure": pure,
    "pure without skip": lambda dtype=torch.float64: pure(dtype, skip=False),
    "norm without skip": lambda dtype=torch.float64: pure(dtype, skip=False, norm=True),
    "pure with all": lambda dtype=torch.float64: pure(dtype, mlp=True, norm=True),
    "post encoder": lambda dtype=torch.float64: own("encoder", dtype),
    "post decoder": lambda dtype=torch.float64: own("decoder", dtype),
    "pre encoder": lambda dtype=torch.float64: own("encoder", dtype, norm="pre"),
    "pre decoder": lambda dtype=torch.float64: own("decoder", dtype, norm="pre", norm_kind="documented"),
}
every = pytest.mark.parametrize("name", OWN)


def by_name(placed: list[PlacedSample], reading: str) -> dict[object, Tensor]:
    return {found.where: found.sample.values for found in placed if found.reading == reading}


def total_share(placed: list[PlacedSample]) -> Tensor:
    """Embedding, heads, MLPs and biases together, of each sentence."""
    parts = ("paths.embedding", "paths.mlp", "paths.bias")
    total = sum((values for name in parts for values in by_name(placed, name).values()), torch.zeros(1))
    return total + sum((values.sum(-1) for values in by_name(placed, "paths.head").values()), torch.zeros(1))


@every
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_lengths_recompose_the_exit(name: str, dtype: torch.dtype) -> None:
    """Within ten times the rounding of the forward pass itself, as `forward_rounding` has it."""
    forward = OWN[name](dtype)
    steps = [frozen.step for frozen in frozen_steps(forward)]
    real, exit = forward.tokens.real, forward.blocks[-1].exit
    C = paths_by_length(forward.blocks[0].entry, steps)
    streams = [block.entry for block in forward.blocks] + [exit]
    largest = max(stream[real].abs().max().item() for stream in streams)
    allowed = 10 * forward_rounding(dtype, len(steps), largest)
    assert (C.sum(0) - exit)[real].abs().max() <= allowed
    (reported,) = by_name(Paths(MeasureContext(N)).forward(forward), "paths.error").values()
    for b, length in enumerate(real.sum(-1).tolist()):
        assert reported[b] * exit[b, :length].abs().max() <= allowed


@every
def test_readings_against_slow_loops(name: str) -> None:
    forward = OWN[name]()
    placed = Paths(MeasureContext(N)).forward(forward)
    x, real = forward.blocks[-1].exit, forward.tokens.real
    steps = [frozen.step for frozen in frozen_steps(forward)]
    C = paths_by_length(forward.blocks[0].entry, steps)
    share, norm, residual = (by_name(placed, f"paths.{of}")[forward.kind] for of in ("share", "norm", "residual"))
    for b, length in enumerate(real.sum(-1).tolist()):
        for j, term in enumerate(C):
            rows = [(term[b, i], x[b, i]) for i in range(length)]
            assert_close(share[b, j], torch.stack([c @ y / (y @ y) for c, y in rows]).mean())
            assert_close(norm[b, j], torch.stack([c.norm() / y.norm() for c, y in rows]).mean())
            assert_close(residual[b, j], relative_residual(term[b, :length]))
    assert_close(share.sum(-1), torch.ones(BATCH, dtype=torch.float64))
    assert_close(total_share(placed), torch.ones(BATCH, dtype=torch.float64))
    assert by_name(placed, "paths.count")[forward.kind].shape == share.shape[1:]


@every
def test_share_of_every_head_and_mlp(name: str) -> None:
    """Each written out, carried to the end through the norms, and weighed there; together they are the output."""
    forward = OWN[name]()
    placed = Paths(MeasureContext(N)).forward(forward)
    heads, mlps = by_name(placed, "paths.head"), by_name(placed, "paths.mlp")
    x, real = forward.blocks[-1].exit, forward.tokens.real
    frozen = frozen_steps(forward)
    steps = [step.step for step in frozen]
    seen = 0
    for at, (_, layer, parts, _) in enumerate(frozen):
        for part in parts:
            if part.attention is None:
                written, got = part.output.unsqueeze(1), mlps[Slot(forward.kind, layer)].unsqueeze(1)
            else:
                written, got = part.attention.Y @ the(part.attention.weights).W_O, heads[part.attention.slot]
                seen += 1
            end = carried(written.transpose(0, 1), steps[at:]).detach()
            expected = ((end * x).sum(-1) / x.square().sum(-1)).masked_fill(~real, 0.0).sum(-1) / real.sum(-1)
            assert_close(got, expected.mT)
    assert len(heads) == seen and len(mlps) == len(forward.blocks)


@every
def test_declared_is_given(name: str) -> None:
    for measure in (Paths(MeasureContext(N)), Rollout(MeasureContext(N))):
        placed = list(measure.forward(OWN[name]()))
        assert {found.reading for found in placed} == {declared.name for declared in measure.declares()}
        axes = {declared.name: declared.axes for declared in measure.declares()}
        for reading, where, sample in placed:
            assert isinstance(where, Slot) == (axes[reading][:1] == ("layer",))
            per_sentence = reading != "paths.count"
            assert sample.values.dim() == per_sentence + sum(axis != "layer" for axis in axes[reading])
            assert not per_sentence or len(sample.values) == BATCH
            assert sample.values.isfinite().all()


def test_counts() -> None:
    (counts,) = by_name(Paths(MeasureContext(N)).forward(pure()), "paths.count").values()
    assert counts.tolist() == [1, 9, 27, 27]
    (counts,) = by_name(Paths(MeasureContext(N)).forward(own("decoder")), "paths.count").values()
    assert counts.tolist() == [1, 3 + 3 + 3 + 3, 9 + 9]


@pytest.mark.parametrize(
    "measure", [Paths(MeasureContext(N)), Rollout(MeasureContext(N))], ids=lambda measure: measure.name
)
@every
def test_padding_never_counts(name: str, measure: Measure) -> None:
    """Whatever the stream, the outputs and Y hold at padding, even if it is no number."""
    forward = OWN[name]()
    pad = ~forward.tokens.real.unsqueeze(-1)

    def spoilt(part: PartTrace) -> PartTrace:
        trace = part.attention
        if trace is not None:
            trace = replace(trace, Y=trace.Y.masked_fill(pad.unsqueeze(1), torch.nan))
        stream, output = (T.masked_fill(pad, torch.nan) for T in (part.stream, part.output))
        return PartTrace(part.part, stream, output, trace)

    blocks = tuple(
        BlockTrace(
            block.anatomy,
            block.entry.masked_fill(pad, torch.nan),
            block.exit.masked_fill(pad, torch.nan),
            tuple(map(spoilt, block.parts)),
        )
        for block in forward.blocks
    )
    spoilt_samples = measure.forward(ForwardTrace(forward.kind, blocks, forward.tokens))
    for one, other in zip(measure.forward(forward), spoilt_samples, strict=True):
        assert_close(one.sample.values, other.sample.values)


def test_registered() -> None:
    assert MEASURES["paths"] is Paths and MEASURES["rollout"] is Rollout
    assert not Paths.default and not Rollout.default


def test_whole_maps() -> None:
    trace = the(pure().blocks[1].parts[0].attention)
    P = whole_maps(trace)
    S = (the(trace.scale) * trace.Q @ trace.K.mT).masked_fill(~trace.keys.real[:, None, None], -torch.inf)
    assert_close(P, S.softmax(-1) * trace.queries.real[:, None, :, None])


def test_effective_tokens() -> None:
    forward = pure()
    placed = by_name(list(Rollout(MeasureContext(N)).forward(forward)), "rollout.effective")
    for b, length in enumerate(LENGTHS):
        mixed = torch.eye(length, dtype=torch.float64)
        for block in forward.blocks:
            P = whole_maps(the(block.parts[0].attention))[b, :, :length, :length].mean(0)
            mixed = (P / 2 + torch.eye(length) / 2) @ mixed
            expected = torch.stack([(-(row * row.clamp_min(1e-300).log()).sum()).exp() for row in mixed]).mean()
            assert_close(placed[Slot("encoder", block.anatomy.layer)][b], expected)
    assert placed[Slot("encoder", 2)][2].item() == pytest.approx(1.0)


class Cube(nn.Module):
    def forward(self, z: Tensor) -> Tensor:
        return z**3


class Gemma(nn.RMSNorm):
    """Its weight is the difference to one."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.rms_norm(x, self.normalized_shape) * (1.0 + self.weight)


NORMS = {
    "own": LayerNorm(D_E),
    "own documented": LayerNorm(D_E, "documented", 0.1),
    "torch": nn.LayerNorm(D_E, 0.1),
    "torch plain": nn.LayerNorm(D_E, elementwise_affine=False),
    "RMS": nn.RMSNorm(D_E),
    "1 + weight": Gemma(D_E),
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("norm", NORMS.values(), ids=NORMS)
def test_frozen_norm(norm: nn.Module, dtype: torch.dtype) -> None:
    """Also where the stream has mean zero, as after a norm, which tells nothing of whether the mean is taken off."""
    norm = filled(norm).to(dtype)
    stream = randn(2, 5, D_E, dtype=dtype)
    stream = stream - stream.mean(-1, keepdim=True)
    stream[1, 2] = 0.0
    frozen = frozen_norm(norm, stream)
    recomposed = frozen.linear(stream.to(frozen.gamma.dtype)) + (0 if frozen.beta is None else frozen.beta)
    rtol, atol = tolerance(dtype)
    torch.testing.assert_close(recomposed.to(dtype), norm(stream).detach(), rtol=rtol, atol=10 * atol)
    assert frozen.centred == isinstance(norm, LayerNorm | nn.LayerNorm)


def test_another_norm_is_refused() -> None:
    with pytest.raises(UsageError, match="Cube"):
        frozen_norm(Cube(), randn(2, 3, 5))


def test_unknown_weights_are_refused() -> None:
    forward = pure()
    part = forward.blocks[0].parts[0]
    vars(part.attention)["weights"] = vars(part.part)["weights"] = None
    with pytest.raises(UsageError, match=r"enc\.0"):
        Paths(MeasureContext(N)).forward(forward)


def foreign(name: str) -> Iterator[ForwardTrace]:
    """Every stack of a tiny model of Hugging Face, whose attention is computed here and handed over."""
    transformers: Any = pytest.importorskip("transformers")
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, sdpa_mask
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    from tests.tiny_models import SOURCE, TARGET, TINY, inputs

    model: Any = TINY[name].build()
    watched, implementation = Watched(model), "attnworks-paths-test"

    def attend(module: nn.Module, Q: Tensor, K: Tensor, V: Tensor, mask: Tensor | None, scaling: float, **given: Any):
        share = Q.shape[1] // K.shape[1]
        S = scaling * Q @ K.repeat_interleave(share, 1).mT
        if given.get("position_bias") is not None:
            S = S + given["position_bias"]
        if mask is None and getattr(module, "is_causal", False):
            mask = torch.ones(S.shape[-2:], dtype=torch.bool).tril()
        P = (S if mask is None else S.masked_fill(~mask, -torch.inf)).softmax(-1)
        Y = P @ V.repeat_interleave(share, 1)
        watched.handed.setdefault(module, []).append(Handed(Q, K, V, Y, Mask(), None, P))
        return Y.transpose(1, 2), None

    transformers.AttentionInterface.register(implementation, attend)
    transformers.AttentionMaskInterface.register(implementation, sdpa_mask)
    try:
        model.set_attn_implementation(implementation)
        with watched.watching(), torch.no_grad():
            model(**inputs(model))
    finally:
        ALL_ATTENTION_FUNCTIONS._global_mapping.pop(implementation)
        ALL_MASK_ATTENTION_FUNCTIONS._global_mapping.pop(implementation)
    source, target = tokens_of((SOURCE, SOURCE - 2)), tokens_of((TARGET, TARGET))
    for kind in dict.fromkeys(block.kind for block in watched.blocks):
        alone = not getattr(model.config, "is_encoder_decoder", False)
        own = source if kind == "encoder" or alone else target
        yield watched.trace(kind, own, target if alone else source)


FOREIGN = (
    *("albert", "bart", "bert", "bert-decoder", "distilbert", "gpt2", "gpt2-cross", "gpt_neox", "gpt_neox-serial"),
    *("llama", "mbart", "opt", "opt-post", "qwen2", "t5"),
)


@pytest.mark.parametrize("name", FOREIGN)
def test_models_of_hugging_face(name: str) -> None:
    """The norms of Llama and Qwen2 round to float32."""
    for forward in foreign(name):
        placed = Paths(MeasureContext(N)).forward(forward)
        (error,) = by_name(placed, "paths.error").values()
        rtol = 1e-6 if name in ("llama", "qwen2") else tolerance(torch.float64).rtol
        assert error.max() < rtol
        assert (total_share(placed) - 1).abs().max() < rtol
        assert (by_name(placed, "paths.share")[forward.kind].sum(-1) - 1).abs().max() < rtol
