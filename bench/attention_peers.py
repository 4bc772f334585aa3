"""Attention of other hands, each reduced to its core: (Q, K, V) -> Y, in the layout that it works on.

A wrapper builds for a Task and says what its peer should compute (`expected`, on [b h n d]), so that like is compared
with like before anything is timed; None marks another function than ours. Projections are left out everywhere: layers
that insist on them get `Given` in their place, which hands over the tensor that a projection would have made.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnworks.attention.benchmark.versus_dense import BenchmarkTask, Core

WINDOW, BLOCK, RANDOM, RANK, DEGREE = 256, 64, 3, 256, 64
"""Keys to each side; positions of a BigBird block, and random blocks; Linformer's rank; neighbours in a graph."""

Function = Callable[[Tensor, Tensor, Tensor], Tensor]


class Built(NamedTuple):
    core: Core
    expected: Function | None


@dataclass(frozen=True)
class Peer:
    package: str
    build: Callable[[BenchmarkTask], Built]
    layout: str = "b h n d"
    backward: bool = True
    remark: str = ""


# --- layouts, made before the clock runs ------------------------------------------------------------------------------

LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "b h n d": lambda T: T,
    "b n h d": lambda T: T.transpose(1, 2).contiguous(),
    "b n hd": lambda T: T.transpose(1, 2).flatten(2).contiguous(),
}


def heads_first(T: Tensor, layout: str, heads: int) -> Tensor:
    """Back to [b h n d]."""
    return T if layout == "b h n d" else T.reshape(*T.shape[:2], heads, -1).transpose(1, 2)


# --- what is to be computed -------------------------------------------------------------------------------------------


def softmax(task: BenchmarkTask, table: Tensor | None = None) -> Function:
    """Dense attention, or over a table [n n] or [h n n] of what may be seen (boolean) or is added (float)."""
    return lambda Q, K, V: F.scaled_dot_product_attention(Q, K, V, attn_mask=table, is_causal=task.causal)


def banded(task: BenchmarkTask) -> Function:
    """Every query sees itself and WINDOW keys to each side."""

    def attend(Q: Tensor, K: Tensor, V: Tensor) -> Tensor:
        places = torch.arange(task.n)
        return softmax(task, (places[:, None] - places).abs() <= WINDOW)(Q, K, V)

    return attend


def features(X: Tensor) -> Tensor:
    return F.elu(X) + 1


def kernelised(task: BenchmarkTask) -> Function:
    """phi(Q) phi(K)^T V over its row sums, with phi = elu + 1, by way of the n x n table."""

    def attend(Q: Tensor, K: Tensor, V: Tensor) -> Tensor:
        table = features(Q) @ features(K).transpose(-1, -2)
        table = table.tril() if task.causal else table
        return table @ V / table.sum(-1, keepdim=True)

    return attend


def ring(n: int) -> Tensor:
    """A graph of degree 64, as a table [n n]: positions on a circle see every (n / 64)th from themselves on."""
    places = torch.arange(n, dtype=torch.int32)
    return (places - places[:, None]) % (n // DEGREE) == 0


# --- torch ------------------------------------------------------------------------------------------------------------


def sdpa(task: BenchmarkTask) -> Built:
    return Built(Core(softmax(task)), softmax(task))


def sdpa_over_a_graph(task: BenchmarkTask) -> Built:
    masked = softmax(task, ring(task.n))
    return Built(Core(masked), masked)


def flex_window(task: BenchmarkTask) -> Built:
    """FlexAttention, compiled. Its block mask is written down directly: create_block_mask builds an n x n table."""
    from torch.nn.attention.flex_attention import BlockMask, flex_attention

    side = 128
    blocks = torch.arange(-(-task.n // side))
    apart = (blocks[:, None] - blocks).abs()
    whole = (apart + 1) * side - 1 <= WINDOW
    part = ((apart - 1) * side + 1 <= WINDOW) & ~whole

    def listed(table: Tensor) -> tuple[Tensor, Tensor]:
        found, order = table.int().sort(dim=-1, descending=True, stable=True)
        return found.sum(-1, dtype=torch.int32)[None, None], order.int()[None, None]

    mask = BlockMask.from_kv_blocks(
        *listed(part), *listed(whole), BLOCK_SIZE=side, mask_mod=lambda b, h, i, j: (i - j).abs() <= WINDOW
    )
    compiled: Any = torch.compile(flex_attention, dynamic=False)

    def attend(Q: Tensor, K: Tensor, V: Tensor) -> Tensor:
        return compiled(Q.detach(), K.detach(), V.detach(), block_mask=mask)  # it refuses inputs that ask for gradients

    return Built(Core(attend), banded(task))


# --- Hugging Face -----------------------------------------------------------------------------------------------------


class Given(nn.Module):
    """Stands where a projection stood, and returns what it was given."""

    tensor: Tensor

    def forward(self, _: Tensor) -> Tensor:
        return self.tensor


def longformer(task: BenchmarkTask) -> Built:
    """LongformerSelfAttention without global tokens. It divides its query in place, hence one copy."""
    from transformers import LongformerConfig
    from transformers.models.longformer.modeling_longformer import LongformerSelfAttention

    width = task.heads * task.width
    config = LongformerConfig(hidden_size=width, num_attention_heads=task.heads, attention_window=[2 * WINDOW])
    layer: Any = LongformerSelfAttention(config, 0).eval()
    layer.query, layer.key, layer.value = Given(), Given(), Given()
    unmasked = torch.zeros(1, task.n)

    def attend(Q: Tensor, K: Tensor, V: Tensor) -> Tensor:
        layer.query.tensor = Q.transpose(0, 1).clone()
        layer.key.tensor, layer.value.tensor = K.transpose(0, 1), V.transpose(0, 1)
        return layer(Q, unmasked, is_index_masked=unmasked.bool(), is_global_attn=False)[0]

    return Built(Core(attend), banded(task))


def hugging_bigbird(task: BenchmarkTask) -> Built:
    """BigBirdBlockSparseAttention's own core, with random blocks drawn once as in training.

    In evaluation all its random blocks are block 0, which is no BigBird; in training it draws them anew in every call,
    which is left out of the time. It draws a few blocks twice near the end of a sequence, so that their keys count
    twice: `expected` adds the logarithm of how often a key is seen.
    """
    import numpy as np
    from transformers import BigBirdConfig
    from transformers.models.big_bird.modeling_big_bird import BigBirdBlockSparseAttention, BigBirdModel

    config = BigBirdConfig(
        hidden_size=task.heads * task.width,
        num_attention_heads=task.heads,
        block_size=BLOCK,
        num_random_blocks=RANDOM,
    )
    layer: Any = BigBirdBlockSparseAttention(config).train()
    blocks = task.n // BLOCK
    np.random.seed(0)
    if task.n in (1024, 3072, 4096):
        longest = config.max_position_embeddings
        drawn = [
            layer._bigbird_block_rand_mask(longest, longest, BLOCK, BLOCK, RANDOM, last_idx=1024)
            for _ in range(task.heads)
        ]
        drawn = [rows[: blocks - 2] for rows in drawn]
        layer._bigbird_block_rand_mask = _in_turn(drawn)
    else:
        plan, number = layer._get_rand_attn_plan(task.n, BLOCK, RANDOM)
        drawn = layer._bigbird_block_rand_mask_with_head(task.n, task.n, BLOCK, BLOCK, task.heads, plan, number)
        layer._bigbird_block_rand_mask_with_head = lambda **_: drawn
    layer.eval()
    ones = torch.ones(1, task.n)
    blocked, band, rows, columns = BigBirdModel.create_masks_for_block_sparse_attn(ones, BLOCK)
    sizes = (task.heads, RANDOM, task.width, BLOCK, BLOCK, 1, task.n, task.n)

    def attend(Q: Tensor, K: Tensor, V: Tensor) -> Tensor:
        masks = (band, rows, columns, blocked, blocked)
        Y, _ = layer.bigbird_block_sparse_attention(Q, K, V, *masks, *sizes, 0, None, None)
        return Y.transpose(1, 2)

    def expected(Q: Tensor, K: Tensor, V: Tensor) -> Tensor:
        times = torch.zeros(task.heads, blocks, blocks)
        for row in range(1, blocks - 1):
            times[:, row, [0, row - 1, row, row + 1, blocks - 1]] = 1
            for head in range(task.heads):
                for column in drawn[head][row - 1]:
                    times[head, row, column] += 1
        times[:, [0, -1]] = 1
        table = times.log().repeat_interleave(BLOCK, 1).repeat_interleave(BLOCK, 2)
        return softmax(task, table)(Q, K, V)

    return Built(Core(attend), expected)


def _in_turn(drawn: list[Any]) -> Callable[..., Any]:
    """Called once per head: the next head's blocks."""
    state = {"head": -1}

    def following(*_: object, **__: object) -> Any:
        state["head"] = (state["head"] + 1) % len(drawn)
        return drawn[state["head"]]

    return following


# --- lucidrains -------------------------------------------------------------------------------------------------------


def local_attention(task: BenchmarkTask) -> Built:
    """LocalAttention with its exact window; positions are left out."""
    from local_attention import LocalAttention  # pyright: ignore[reportMissingImports]

    layer = LocalAttention(WINDOW, look_backward=1, look_forward=1, exact_windowsize=True, use_rotary_pos_emb=False)
    return Built(Core(layer), banded(task))


def lucid_linformer(task: BenchmarkTask) -> Built:
    """LinformerSelfAttention; its E and F are shared by the heads."""
    from linformer import LinformerSelfAttention  # pyright: ignore[reportMissingImports]

    layer: Any = LinformerSelfAttention(task.heads * task.width, task.n, k=RANK, heads=task.heads)
    layer.to_q, layer.to_k, layer.to_v, layer.to_out = Given(), Given(), Given(), nn.Identity()
    E, F_ = layer.proj_k, layer.proj_v

    def attend(Q: Tensor, K: Tensor, V: Tensor) -> Tensor:
        layer.to_q.tensor, layer.to_k.tensor, layer.to_v.tensor = Q, K, V
        return layer(Q)

    def expected(Q: Tensor, K: Tensor, V: Tensor) -> Tensor:
        return softmax(task)(Q, E.mT @ K, F_.mT @ V)

    return Built(Core(attend, (E, F_)), expected)


def performer(task: BenchmarkTask) -> Built:
    """Performer's linear attention under the features elu + 1, instead of its random ones."""
    from performer_pytorch import performer_pytorch as package  # pyright: ignore[reportMissingImports]

    function = package.causal_linear_attention_noncuda if task.causal else package.linear_attention
    return Built(Core(lambda Q, K, V: function(features(Q), features(K), V)), kernelised(task))


def linear_attention_transformer(task: BenchmarkTask) -> Built:
    """Its own features (a softmax each of queries and keys); causal queries see only buckets of 64 before their own."""
    from linear_attention_transformer import linear_attention_transformer as package  # pyright: ignore

    return Built(Core(package.causal_linear_attn if task.causal else package.linear_attn), None)


# --- others -----------------------------------------------------------------------------------------------------------


def fast_transformers(task: BenchmarkTask) -> Built:
    """Its (causal) LinearAttention in C++. Masks only have to say what they are: its own causal one holds n x n."""
    from fast_transformers.attention import CausalLinearAttention, LinearAttention  # pyright: ignore

    layer = (CausalLinearAttention if task.causal else LinearAttention)(task.width)
    mask = SimpleNamespace(all_ones=not task.causal, lower_triangular=task.causal)
    lengths = SimpleNamespace(float_matrix=torch.ones(1, task.n))
    return Built(Core(lambda Q, K, V: layer(Q, K, V, mask, lengths, lengths)), kernelised(task))


def flash_linear_attention(task: BenchmarkTask) -> Built:
    """flash-linear-attention's plain chunked form; its kernels need a GPU, and importing them needs triton."""
    naive = _module_of("fla", "ops/linear_attn/naive.py")

    def attend(Q: Tensor, K: Tensor, V: Tensor) -> Tensor:
        return naive.naive_chunk_linear_attn(features(Q), features(K), V, normalize=True)

    return Built(Core(attend), kernelised(task))


def _module_of(package: str, file: str) -> Any:
    """One file of a package whose __init__ cannot be imported here."""
    found = importlib.util.find_spec(package)
    assert found is not None and found.submodule_search_locations
    path = Path(found.submodule_search_locations[0]) / file
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# --- one token at a time ----------------------------------------------------------------------------------------------

Step = Callable[[Tensor, Tensor, Tensor], Tensor]


def softmax_cache(task: BenchmarkTask) -> Step:
    """SDPA of one query over the keys and values of task.n positions before it, and its own."""
    room = task.n + 4096
    keys, values = (torch.randn(1, task.heads, room, task.width) for _ in range(2))
    state = {"filled": task.n}

    def step(Q: Tensor, K: Tensor, V: Tensor) -> Tensor:
        at = state["filled"]
        keys[:, :, at : at + 1], values[:, :, at : at + 1] = K, V
        state["filled"] = at + 1 if at + 1 < room else task.n
        return F.scaled_dot_product_attention(Q, keys[:, :, : at + 1], values[:, :, : at + 1])

    return step


def fast_transformers_step(task: BenchmarkTask) -> Step:
    from fast_transformers.recurrent.attention import RecurrentLinearAttention  # pyright: ignore

    layer, state = RecurrentLinearAttention(task.width), {"state": None}

    def step(Q: Tensor, K: Tensor, V: Tensor) -> Tensor:
        Y, state["state"] = layer(Q[:, :, 0], K[:, :, 0], V[:, :, 0], state=state["state"])
        return Y[:, :, None]

    return step


PEERS: dict[str, Peer] = {
    "torch SDPA": Peer("torch", sdpa),
    "torch SDPA, dense mask": Peer("torch", sdpa_over_a_graph),
    "FlexAttention, compiled": Peer("torch", flex_window, backward=False, remark="no backward pass on a CPU"),
    "HF Longformer": Peer("transformers", longformer, "b n hd"),
    "HF BigBird": Peer(
        "transformers", hugging_bigbird, remark="blocks of its own: first and last global, random ones drawn once"
    ),
    "local-attention": Peer("local_attention", local_attention),
    "linformer": Peer("linformer", lucid_linformer, "b n hd"),
    "performer-pytorch": Peer("performer_pytorch", performer, remark="with elu + 1 for its random features"),
    "linear-attention-transformer": Peer(
        "linear_attention_transformer", linear_attention_transformer, remark="another function: softmax features"
    ),
    "fast-transformers": Peer("fast_transformers", fast_transformers, "b n h d"),
    "flash-linear-attention, naive": Peer("fla", flash_linear_attention, "b n h d"),
}
STEPPERS: dict[str, tuple[str, Callable[[BenchmarkTask], Step]]] = {
    "torch SDPA over a cache": ("torch", softmax_cache),
    "fast-transformers": ("fast_transformers", fast_transformers_step),
}


def installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None
