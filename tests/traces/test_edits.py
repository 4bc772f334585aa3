"""Networks without skip, MLP or norm equal the same networks written down without them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from itertools import combinations
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from attnworks.core.errors import UnknownNameError, UsageError
from attnworks.exam.linalg.residual import relative_residual
from attnworks.exam.measure import MeasureContext
from attnworks.exam.measures.paths import Paths
from attnworks.hf.subject import HFSubject
from attnworks.hf.tiny import tiny_model
from attnworks.models import PureAttention, Recurrent, build
from attnworks.models.anatomy import BlockAnatomy, Part
from attnworks.models.block import Block, Residual
from attnworks.reshape.surgery import anatomy_of
from attnworks.text.tokens import Batch
from attnworks.traces.edits import REMOVABLE_PARTS, without_parts
from attnworks.traces.forward import record_forward
from attnworks.traces.layer import first
from attnworks.traces.own import OwnSubject
from attnworks.traces.streams import hook_streams
from attnworks.traces.subject import LayerHook, Subject
from attnworks.training.objectives.contract import Abilities, Outputs
from tests.model_helpers import (
    attention_config,
    filled,
    pure_config,
    randn,
    recurrent_config,
    the,
    transformer,
)
from tests.tiny_models import TINY
from tests.traces.trace_helpers import Keep, random_batch

SOURCE, TARGET = (7, 5, 3), (5, 11, 2)
COMBINATIONS = [chosen for n in (1, 2, 3) for chosen in combinations(REMOVABLE_PARTS, n)]
by_combination = pytest.mark.parametrize("removed", COMBINATIONS, ids="-".join)
FOREIGN = ["albert", "albert-groups", "bart", "bert", "bert-chunked", "distilbert", "gpt2", "gpt_neox"]
FOREIGN += ["gpt_neox-serial", "llama", "marian", "mbart", "opt", "opt-post", "qwen2", "roberta", "t5", "t5-gated"]

Streams = dict[tuple[str, int], Tensor]


def close(got: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-10 * float(expected.abs().max()))


def streams_of(subject: Any, batch: Batch) -> Streams:
    keep = Keep()
    with torch.no_grad():
        subject.run(batch, keep)
    return {(stream.kind, stream.depth): stream.X for stream in keep.streams}


def hooks_of(model: nn.Module) -> int:
    return sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules())


# --- networks written by hand -----------------------------------------------------------------------------------------


def composed(
    block: BlockAnatomy, x: Tensor, removed: tuple[str, ...], branch: Callable[[Part, Tensor], Tensor]
) -> Tensor:
    """One block: its parts in a row or side by side, with what is left of skip, MLP and norm."""
    skip, parts = "skip" not in removed, [p for p in block.parts if p.role != "mlp" or "mlp" not in removed]

    def norm(part: Part, z: Tensor) -> Tensor:
        return z if "norm" in removed else the(part.norm)(z)

    if block.parallel:
        summands = [branch(part, norm(part, x)) for part in parts]
        return sum(summands, x if skip else torch.zeros_like(x))
    for part in parts:
        if block.norm == "pre":
            y = branch(part, norm(part, x))
            x = x + y if skip else y
        else:
            y = branch(part, x)
            x = norm(part, x + y if skip else y)
    return x


MLPS: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "bert": lambda block, x: block.output.dense(block.intermediate(x)),
    "albert": lambda block, x: block.ffn_output(block.activation(block.ffn(x))),
    "distilbert": lambda block, x: block.ffn(x),
    "gpt2": lambda block, x: block.mlp(x),
    "bart": lambda block, x: block.fc2(block.activation_fn(block.fc1(x))),
    "t5": lambda block, x: block.layer[-1].DenseReluDense(x),
}
MLPS |= dict.fromkeys(("gpt_neox", "llama", "qwen2"), MLPS["gpt2"])
MLPS |= dict.fromkeys(("marian", "mbart", "opt"), MLPS["bart"]) | {"roberta": MLPS["bert"]}


class Given(dict[tuple[BlockAnatomy, str], tuple[tuple[Any, ...], dict[str, Any]]]):
    """What every attention module is called with besides the stream: masks, positions, the output of the encoder."""

    def __init__(self, subject: HFSubject, batch: Batch) -> None:
        super().__init__()
        calls: dict[nn.Module, list[Any]] = {}
        handles = []
        for module in {the(part.attention) for block in the(subject.blocks) for part in block.parts if part.attention}:

            def record(module: nn.Module, args: Any, kwargs: Any) -> None:
                calls.setdefault(module, []).append((args, kwargs))

            handles.append(module.register_forward_pre_hook(record, with_kwargs=True))
        with torch.no_grad():
            subject.run(batch)
        for handle in handles:
            handle.remove()
        for block in the(subject.blocks):
            for part in block.parts:
                if part.attention is not None:
                    self[block, part.role] = calls[part.attention].pop(0)

    def branch(self, block: BlockAnatomy, part: Part, x: Tensor, encoded: Tensor | None) -> Tensor:
        """What attention adds to the stream if it reads x (and the encoder's output, if that is what it looks at)."""
        args, kwargs = self[block, part.role]
        kwargs = {name: value for name, value in kwargs.items() if name != "hidden_states"}
        args = (x, *args[1:])
        if part.role == "cross":
            names = [name for name in ("key_value_states", "encoder_hidden_states") if kwargs.get(name) is not None]
            kwargs |= dict.fromkeys(names, encoded)
            assert names
        attention, seen = the(part.attention), []
        handle = part.branch.register_forward_hook(lambda module, inputs, output: seen.append(first(output)))
        output = first(attention(*args, **kwargs))
        Y = seen[0] if seen else part.branch(output)
        handle.remove()
        return Y


def by_hand(subject: HFSubject, batch: Batch, removed: tuple[str, ...]) -> Streams:
    """The streams of the whole network, block by block; the entries of the stacks are those of the whole network."""
    given, whole = Given(subject, batch), streams_of(subject, batch)
    model: Any = subject.model
    family: str = model.config.model_type
    expected: Streams = {}
    encoded = x = None
    with torch.no_grad():
        for block in the(subject.blocks):
            if block.layer == 0:
                encoded = after_the_encoder(model.base_model, x)
                x = expected[block.kind, 0] = whole[block.kind, 0]

            def branch(part: Part, z: Tensor, block: BlockAnatomy = block, Z: Tensor | None = encoded) -> Tensor:
                return MLPS[family](block.module, z) if part.role == "mlp" else given.branch(block, part, z, Z)

            x = expected[block.kind, block.layer + 1] = composed(block, the(x), removed, branch)
    return expected


def after_the_encoder(base: Any, x: Tensor | None) -> Tensor | None:
    """T5 and mBART norm the last stream of the encoder."""
    if x is None or not hasattr(base, "encoder"):
        return x
    norm = getattr(base.encoder, "final_layer_norm", None) or getattr(base.encoder, "layer_norm", None)
    return x if norm is None else norm(x)


@pytest.mark.parametrize("name", FOREIGN)
def test_hugging_face_models(name: str) -> None:
    model = TINY[name].build()
    both = getattr(model.config, "is_encoder_decoder", False)
    subject, batch = HFSubject(model, name), random_batch(SOURCE, TARGET if both else None)
    whole = streams_of(subject, batch)
    for place, X in by_hand(subject, batch, ()).items():
        close(whole[place], X)
    for removed in COMBINATIONS:
        expected = by_hand(subject, batch, removed)
        with without_parts(subject, removed):
            got = streams_of(subject, batch)
        assert got.keys() == expected.keys() and len(got) == len(the(subject.blocks)) + 1 + both
        for place, X in expected.items():
            close(got[place], X)
        last = list(got)[-1]
        assert not torch.allclose(got[last], whole[last]), removed


# --- models of attnworks ----------------------------------------------------------------------------------------------


def reduced_copy(model: nn.Module, removed: tuple[str, ...]) -> Any:
    """The same weights in blocks that were built without these parts."""
    copy = deepcopy(model)
    for module in copy.modules():
        if isinstance(module, Residual):
            module.skip = module.skip and "skip" not in removed
            module.norm = None if "norm" in removed else module.norm
        if isinstance(module, Block) and "mlp" in removed:
            module.mlp = None
            del module.mlp_residual
    return copy


OWN: dict[str, tuple[dict[str, Any], Batch]] = {
    "encoder": ({"decoder_layers": 0}, random_batch(SOURCE, words=17)),
    "decoder": ({"encoder_layers": 0}, random_batch(SOURCE, words=17)),
    "both": ({"encoder_layers": 3}, random_batch(SOURCE, TARGET, words=17)),
}


@by_combination
@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("sides", OWN)
def test_own_transformers(sides: str, norm: str, removed: tuple[str, ...]) -> None:
    changes, batch = OWN[sides]
    subject = OwnSubject(transformer(norm=norm, **changes).eval())
    expected = streams_of(OwnSubject(reduced_copy(subject.model, removed)), batch)
    with without_parts(subject, removed):
        got = streams_of(subject, batch)
    for place, X in expected.items():
        close(got[place], X)


class PureSubject(Subject):
    """Vectors instead of tokens: those of the ids."""

    name, abilities = "pure", Abilities("encoder", vocabulary=False)
    model: Any

    def __init__(self, model: PureAttention) -> None:
        self.model = model
        self.blocks: Sequence[BlockAnatomy] | None = anatomy_of(model)
        self.vectors = randn(50, model.config.d_e)

    def _set_model(self, model: Any) -> None:
        raise NotImplementedError

    def _set_tokenizer(self, tokenizer: Any, max_length: int | None) -> None:
        raise NotImplementedError

    def _run(self, batch: Batch, hook: LayerHook | None, *, logits: bool) -> Outputs:
        assert not logits
        hook = LayerHook() if hook is None else hook
        with hook_streams({"encoder": list(self.model.layers)}, batch, hook):
            return Outputs(self.model(self.vectors[batch.source.ids]))


@by_combination
@pytest.mark.parametrize("present", [(), *COMBINATIONS], ids=lambda chosen: "-".join(chosen) or "attention")
def test_pure_attention(present: tuple[str, ...], removed: tuple[str, ...]) -> None:
    """What is not there cannot be removed, and removing it changes nothing."""
    model = filled(build(pure_config(**dict.fromkeys(present, True)))).double()
    left = [part for part in present if part not in removed]
    expected = build(pure_config(**dict.fromkeys(left, True))).double()
    expected.load_state_dict(model.state_dict(), strict=False)
    assert isinstance(model, PureAttention) and isinstance(expected, PureAttention)
    subject, batch = PureSubject(model), random_batch((5, 5))
    with without_parts(subject, removed):
        got = streams_of(subject, batch)
    for place, X in streams_of(PureSubject(expected), batch).items():
        close(got[place], X)


# --- what is left behind, and what is refused -------------------------------------------------------------------------


@contextmanager
def left_as_it_was(subject: Any, batch: Batch) -> Iterator[None]:
    before, blocks = subject.run(batch).hidden, subject.blocks
    yield
    assert torch.equal(subject.run(batch).hidden, before)
    assert hooks_of(subject.model) == 0 and subject.blocks is blocks


@torch.no_grad()
@pytest.mark.parametrize("name", ["albert", "bert", "gpt_neox", "t5"])
def test_the_model_comes_back_whole(name: str) -> None:
    model = TINY[name].build()
    subject, batch = HFSubject(model), random_batch(SOURCE, TARGET if name == "t5" else None)
    with left_as_it_was(subject, batch), without_parts(subject, REMOVABLE_PARTS):
        subject.run(batch)


class Interrupting(LayerHook):
    def attention(self, trace: Any) -> Tensor | None:
        raise KeyboardInterrupt


@torch.no_grad()
@pytest.mark.parametrize("name", ["albert", "bert", "gpt2"])
def test_also_after_an_error_in_the_middle_of_a_block(name: str) -> None:
    subject, batch = HFSubject(TINY[name].build()), random_batch(SOURCE)
    with left_as_it_was(subject, batch), pytest.raises(KeyboardInterrupt), without_parts(subject, REMOVABLE_PARTS):
        subject.run(batch, Interrupting())
    with without_parts(subject, ("skip",)):
        with pytest.raises(KeyboardInterrupt):
            subject.run(batch, Interrupting())
        again = streams_of(subject, batch)
    for place, X in by_hand(subject, batch, ("skip",)).items():
        close(again[place], X)


def test_removing_nothing_touches_nothing() -> None:
    subject = HFSubject(TINY["bert"].build())
    blocks = subject.blocks
    with without_parts(subject, ()):
        assert subject.blocks is blocks and hooks_of(subject.model) == 0
    recurrent = build(recurrent_config())
    assert isinstance(recurrent, Recurrent)
    with without_parts(OwnSubject(recurrent), ()):
        pass


def test_unknown_parts_and_unknown_blocks_are_refused() -> None:
    subject = HFSubject(TINY["bert"].build())
    with pytest.raises(UnknownNameError, match="did you mean 'skip'") as error, without_parts(subject, ("skips",)):
        pass
    assert "\n" not in str(error.value) and hooks_of(subject.model) == 0
    recurrent = build(recurrent_config(mechanism="dense"))
    assert isinstance(recurrent, Recurrent)
    subject = OwnSubject(recurrent, "small")
    with pytest.raises(UsageError, match="are known, got Recurrent") as error, without_parts(subject, ("mlp", "norm")):
        pass
    assert str(error.value).startswith("small without mlp, norm: ") and "\n" not in str(error.value)


# --- measures across depth see the network that runs ------------------------------------------------------------------


@torch.no_grad()
@by_combination
@pytest.mark.parametrize("name", ["bert", "gpt2", "gpt_neox", "own"])
def test_paths_are_those_of_the_reduced_network(name: str, removed: tuple[str, ...]) -> None:
    batch = random_batch(SOURCE, TARGET if name == "own" else None, words=17)
    subject = OwnSubject(transformer(norm="pre").eval()) if name == "own" else HFSubject(TINY[name].build())
    with without_parts(subject, removed):
        traces, errors = record_forward(subject, batch)
    assert traces and max(errors.values()) < 1e-10
    for trace in traces:
        found = {placed.reading: placed.sample for placed in Paths(MeasureContext(11, 0)).forward(trace)}
        assert found["paths.error"].values.max() < 1e-6


@torch.no_grad()
@by_combination
@pytest.mark.parametrize("name", ["cohere", "falcon_h1", "granite", "jamba"])
def test_reduced_networks_of_other_families(name: str, removed: tuple[str, ...]) -> None:
    """Parts in parallel, a state-space layer beside or in place of attention, and factors."""
    model = the(tiny_model(name).model)
    for layer in model.model.layers if name == "granite" else ():
        layer.residual_multiplier = 0.22
    subject, batch = HFSubject(model), random_batch(SOURCE, words=100)
    with without_parts(subject, removed):
        traces, errors = record_forward(subject, batch)
    assert traces and max(errors.values()) < 1e-6
    for trace in traces:
        found = {placed.reading: placed.sample for placed in Paths(MeasureContext(11, 0)).forward(trace)}
        assert found["paths.error"].values.max() < 1e-6


def test_norms_of_what_parts_add_stay() -> None:
    subject = HFSubject(the(tiny_model("gemma2").model), "small")
    with (
        pytest.raises(UsageError, match="a norm of what a part adds"),
        without_parts(subject, ["norm"]),
    ):
        pass


# --- collapse ---------------------------------------------------------------------------------------------------------


def spread(subject: Any, removed: tuple[str, ...], batch: Batch) -> list[float]:
    with without_parts(subject, removed):
        streams = streams_of(subject, batch)
    return [float(relative_residual(X, batch.source.real).max()) for X in streams.values()]


def test_pure_attention_collapses_doubly_exponentially_without_its_parts() -> None:
    """S0.15-S0.17: the exponent of the residual about triples from layer to layer; skips keep tokens apart (S0.20)."""
    config = pure_config(d_e=32, layers=7, attention=attention_config(heads=4, d_k=8, d_v=8, bias=False), d_ff=37)
    config = type(config)(**{**vars(config), "skip": True, "mlp": True, "norm": True})
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = build(config).double()
    assert isinstance(model, PureAttention)
    subject, batch = PureSubject(model), random_batch((13,))
    alone = spread(subject, REMOVABLE_PARTS, batch)
    assert alone[0] > 0.5 and min(alone) < 1e-6
    fallen = [at for at in range(1, 5) if 1e-10 < alone[at] < 0.3]
    logs = [torch.tensor(alone[at]).log().item() for at in fallen]
    assert len(logs) >= 2 and logs[-1] / logs[-2] > 1.5
    assert min(spread(subject, ("mlp", "norm"), batch)) > 0.1
    assert min(spread(subject, (), batch)) > 0.1


def test_a_small_bert_collapses_without_its_parts() -> None:
    model = TINY["bert"].build(num_hidden_layers=7)
    subject, batch = HFSubject(model), random_batch((7, 5))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(("query.weight", "key.weight")):
                parameter.mul_(0.5)
            if name.endswith("LayerNorm.weight"):
                parameter.fill_(1.0)
    assert spread(subject, REMOVABLE_PARTS, batch)[-1] < 1e-6
    assert spread(subject, ("mlp", "norm"), batch)[-1] > 1e-2
    assert spread(subject, (), batch)[-1] > 1e-2
