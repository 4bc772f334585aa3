"""Proof that a cut model computes what the whole one does with the outputs of the removed heads set to zero.

It is run on the model itself: on two rows of random ids with padding, and, for a model that generates, on one more
token with a cache of keys and values.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from math import isfinite, isnan
from typing import Any

import torch
from torch import Tensor, nn

from attnworks.hf import quiet
from attnworks.hf.anatomy import layout_of
from attnworks.hf.attention_hook import attention_hook
from attnworks.hf.evidence.cut_graph import first_floats
from attnworks.hf.evidence.inputs import probe_body, probe_inputs
from attnworks.hf.observe import observe_interface
from attnworks.hf.softmax_observer import observe_softmax
from attnworks.models.modes import eval_mode

EFFECT_SHARE = 1e-4
"""The largest error, as a share of the effect of the removed heads, or of attention."""
ROUNDING_STEPS = 16
"""The largest error beside that, in units of the rounding error of the outputs' type."""


class Proof:
    """What a model gives with some of its heads set to zero, taken before the cut.

    silent    path of an attention module -> the heads that are set to zero
    effect    how much these heads change the outputs, as a share of them
    error     how far the outputs of the cut model were from these, in the same unit, when it was last compared
    """

    def __init__(self, model: Any, silent: Mapping[str, Collection[int]]) -> None:
        modules = {model.get_submodule(path): list(heads) for path, heads in silent.items()}
        runs = runs_of(model)
        with running(model):
            whole = runs[0]()
            with _silent(model, modules):
                self._expected = outputs_of(runs)
        self.effect = distance(whole, self._expected[0])
        self.error, self.last_problem = 0.0, ""

    def problem(self, model: Any) -> str | None:
        """Why the cut model is not the model that it should be, in words; None if it is."""
        self.last_problem = self._problem(model) or ""
        return self.last_problem or None

    def _problem(self, model: Any) -> str | None:
        try:
            with running(model):
                found = [run() for run in runs_of(model)[: len(self._expected)]]
        except Exception:  # whatever the code of a model raises
            return "a layer whose code does not run with fewer heads"
        errors = [distance(one, other) for one, other in zip(found, self._expected, strict=True)]
        self.error = max(errors)
        allowed = allowed_error(self.effect, found[0].dtype)
        where = " with a cache" if errors[0] <= allowed else ""
        if not self.error <= allowed:
            return f"outputs{where} that differ by {self.error:.1e} from those with these heads set to zero"
        return None


@contextmanager
def running(model: Any) -> Iterator[None]:
    with torch.no_grad(), eval_mode(model), quiet(), torch.random.fork_rng(devices=[]):
        yield


@contextmanager
def _silent(model: Any, modules: Mapping[nn.Module, list[int]]) -> Iterator[None]:
    def hook(module: nn.Module, *call: Any) -> Tensor | None:
        heads, Y = modules.get(module), call[4]
        if not heads:
            return None
        Y = Y.clone()
        Y[:, heads] = 0.0
        return Y

    with ExitStack() as stack:
        stack.enter_context(observe_interface(model))
        if not all(layer.interface for layer in layout_of(model).layers):
            stack.enter_context(observe_softmax(model))
        stack.enter_context(attention_hook(hook))
        yield


def distance(found: Tensor, expected: Tensor) -> float:
    """|found - expected| / |expected|, over finite values; infinite where others differ, or hide all but zeros."""
    if found.shape != expected.shape or not bool((found.isfinite() == expected.isfinite()).all()):
        return torch.inf
    both = expected.isfinite()
    if not bool(both.all() | expected[both].any()):
        return torch.inf
    difference, size = (
        (T[both].float() if T.dtype.itemsize < 4 else T[both]).norm() for T in (found - expected, expected)
    )
    found_error = float(difference / size) if bool(size > 0) else float(difference)
    return torch.inf if isnan(found_error) else found_error


def allowed_error(effect: float, dtype: torch.dtype) -> float:
    """The largest distance between outputs that count as equal, for a change with this effect."""
    return EFFECT_SHARE * (effect if isfinite(effect) else 0.0) + ROUNDING_STEPS * torch.finfo(dtype).eps


# --- runs ---


def runs_of(model: Any) -> list[Callable[[], Tensor]]:
    """A pass on two rows, one of them padded; and one over all but the last token, then over that, with a cache.

    Outputs at padding, which mean nothing, are zero.
    """
    body = probe_body(model)
    given = probe_inputs(body, padding=True)
    ids = "decoder_input_ids" if "decoder_input_ids" in given else "input_ids"
    real = given.get(_mask_of(ids))
    takes = {"use_cache", "past_key_values"} <= {*inspect.signature(body.forward).parameters}
    runs: list[Callable[[], Tensor]] = [lambda: _at_tokens(_output(body(**given)), real)]
    if takes and ids in given and _generates(model):
        runs.append(lambda: _at_tokens(_with_cache(body, given, ids), real))
    return runs


def outputs_of(runs: Sequence[Callable[[], Tensor]]) -> list[Tensor]:
    """What these runs of a whole model give, up to one that it fails in, as some models do with a cache."""
    found = [runs[0]()]
    for run in runs[1:]:
        try:
            found.append(run())
        except Exception:  # whatever the code of a model raises
            break
    return found


def _mask_of(ids: str) -> str:
    return "decoder_attention_mask" if ids.startswith("decoder") else "attention_mask"


def _at_tokens(found: Tensor, real: Tensor | None) -> Tensor:
    """Outputs with a row for each of the last tokens, with zeros at padding; others as they are."""
    if real is None or found.dim() != 3 or found.shape[0] != len(real) or found.shape[1] > real.shape[1]:
        return found
    return found.masked_fill(real[:, -found.shape[1] :, None] == 0, 0.0)


def _generates(model: Any) -> bool:
    config = model.config
    writes = getattr(config, "is_encoder_decoder", False) or getattr(config, "is_decoder", False)
    return bool(writes or getattr(model, "can_generate", bool)())


def _with_cache(body: Any, given: Mapping[str, Any], ids: str) -> Tensor:
    mask = _mask_of(ids)
    first = {**given, ids: given[ids][:, :-1], "use_cache": True}
    if mask in given:
        first[mask] = given[mask][:, :-1]
    done = body(**first)
    if getattr(done, "past_key_values", None) is None:
        return _output(done)
    return _output(
        body(**{**given, ids: given[ids][:, -1:], "past_key_values": done.past_key_values, "use_cache": True})
    )


def _output(outputs: Any) -> Tensor:
    found = first_floats(outputs)
    assert found is not None, "outputs without numbers"
    return found
