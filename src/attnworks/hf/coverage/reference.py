"""What the numbers of attnworks must be, computed from a model alone: entropies of heads, outputs without heads."""

from __future__ import annotations

import copy
import inspect
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from attnworks.core.errors import short_message
from attnworks.core.places import HeadId, Slot
from attnworks.hf import quiet
from attnworks.hf.coverage.calls import attention_calls
from attnworks.hf.tiny_config import configs_in
from attnworks.hf.tiny_text import TEXTS
from attnworks.text.passages import Passage, Text

LONGEST_TARGET = 9
"""Words of a target: fewer than any text has, so that lengths tell both sides apart."""
OTHER = "other"
"""The kind of a call between something else than tokens, such as patches of them."""


class WrongNumbersError(Exception):
    """Numbers of attnworks that differ from those of the model."""


class NotCheckedError(Exception):
    """Numbers that could not be checked, and why."""


@contextmanager
def checking() -> Iterator[None]:
    """Errors of what is computed here say that numbers could not be checked; they are no errors of attnworks."""
    try:
        yield
    except NotCheckedError:
        raise
    except Exception as error:
        raise NotCheckedError(f"{type(error).__name__}: {short_message(error)}") from error


def passages(model: Any) -> list[str] | list[Passage]:
    """The texts of every verb; with targets for an encoder-decoder, so that it need not write them."""
    if not is_two_sided(model):
        return list(TEXTS)
    return [Passage(Text(source), Text(target)) for source, target in zip(TEXTS, _targets(), strict=True)]


def is_two_sided(model: Any) -> bool:
    """Whether a model reads a text and writes another. A decoder may have the config of such a model."""
    takes = inspect.signature(model.forward).parameters
    return bool(getattr(model.config, "is_encoder_decoder", False)) and "decoder_input_ids" in takes


def _targets() -> list[str]:
    """Shorter than the texts, so that the lengths of both sides say what a layer attends to."""
    return [" ".join(text.split()[:LONGEST_TARGET]) for text in (*TEXTS[3:], *TEXTS[:3])]


class Reference:
    """The eager implementation of a model on a padded batch of the texts.

    source     tokens of the only or first side that are not padding: [b, i]
    real       the same of the side that the outputs belong to
    compared   rows of the outputs that say something: finite ones of real tokens
    outputs    logits, or hidden states of a model without an output layer: [b, i, e]; [b, 1, e] if it gives one vector
               for each text
    """

    def __init__(self, model: Any, tokenizer: Any) -> None:
        with quiet():
            self.model = copy.deepcopy(model)
            self.model.set_attn_implementation("eager")
        for part in configs_in(self.model.config):
            part._attn_implementation = "eager"  # Falcon keeps its own otherwise
        read = batch_of_texts(model, tokenizer)
        self.source = read["attention_mask"].bool()
        self.real = read["decoder_attention_mask"].bool() if "decoder_attention_mask" in read else self.source
        takes = inspect.signature(model.forward).parameters
        self.inputs = {name: value for name, value in {**read, "use_cache": False}.items() if name in takes}
        self.outputs, self.weights = self._run_recorded(self.inputs)
        if not self.weights:
            raise NotCheckedError("its attention is neither a call of the interface nor softmax times values")
        self.compared = self._rows() & self.outputs.isfinite().all(-1)
        if not bool(self.compared.any()):
            raise NotCheckedError("the outputs of the model are not finite")

    def _rows(self) -> Tensor:
        """The rows of outputs without padding. Where tokens have no rows, those of texts without padding."""
        b, rows = self.outputs.shape[:2]
        if (b, rows) == self.real.shape:
            return self.real
        return (self.real.all(1, keepdim=True) | (rows == 1)).expand(b, rows)

    def entropies(self) -> dict[str, list[Tensor]]:
        """Kind of attention -> mean entropy of each head [h] in each of its calls, of the texts in one padded batch.

        A head's entropy is the mean over the real queries of a sentence, then over sentences. Weights that do not sum
        to one leave the rest to a sink.
        """
        found: defaultdict[str, list[Tensor]] = defaultdict(list)
        for kind, P in self._of_tokens(self.weights):
            found[kind].append(mean_entropy(P, self.source if kind == "encoder" else self.real))
        return found

    def entropies_alone(self) -> dict[str, list[Tensor]]:
        """The same of each text by itself, without padding: another number where the model reads padding."""
        found: dict[str, list[Tensor]] = {}
        for text in range(len(TEXTS)):
            inputs = {
                name: value[text : text + 1, self._real(name)[text]] if isinstance(value, Tensor) else value
                for name, value in self.inputs.items()
            }
            weights = self._run_recorded(inputs)[1]
            for kind, P in self._of_tokens(weights):
                found.setdefault(kind, []).append(mean_entropy(P, torch.ones(1, P.shape[2], dtype=torch.bool)))
        return {
            kind: [
                torch.stack(rows[call :: len(rows) // len(TEXTS)]).mean(0) for call in range(len(rows) // len(TEXTS))
            ]
            for kind, rows in found.items()
        }

    def _of_tokens(self, weights: list[Tensor]) -> Iterator[tuple[str, Tensor]]:
        """The calls between tokens, with their kinds."""
        return ((kind, P) for kind, P in zip(self.kinds(), weights, strict=True) if kind != OTHER)

    def _real(self, name: str) -> Tensor:
        return self.real if name.startswith("decoder") else self.source

    def kinds(self) -> list[str]:
        """The kind of each call, by the lengths of its sides: "" for self-attention in a model with one side."""
        source = self.inputs["input_ids"].shape[1]
        names = {(source, source): ""}
        if self.two_sided:
            target = self.inputs["decoder_input_ids"].shape[1]
            names = {(source, source): "encoder", (target, target): "decoder", (target, source): "cross"}
        return [names.get((P.shape[2], P.shape[3]), OTHER) for P in self.weights]

    def without(self, heads: Collection[HeadId], layers: Collection[Slot]) -> Tensor:
        """The outputs where the attention of these heads gives zero.

        layers    all attention layers, as attnworks names them: the n-th of a kind is the n-th call of that kind
        """
        zero: defaultdict[int, list[int]] = defaultdict(list)
        for head in heads:
            zero[self._call(head.slot, layers)].append(head.head)
        return self._run_recorded(self.inputs, zero)[0]

    @property
    def two_sided(self) -> bool:
        return "decoder_input_ids" in self.inputs

    def _call(self, slot: Slot, layers: Collection[Slot]) -> int:
        """The number of the call that is this layer."""
        calls = [number for number, kind in enumerate(self.kinds()) if kind in ("", slot.kind)]
        named = sorted(layer.layer for layer in layers if layer.kind == slot.kind)
        if len(calls) != len(named):
            raise NotCheckedError(f"the model calls attention {len(calls)} times and has {len(named)} named layers")
        return calls[named.index(slot.layer)]

    def _run_recorded(
        self, inputs: dict[str, Any], zero: Mapping[int, Collection[int]] | None = None
    ) -> tuple[Tensor, list[Tensor]]:
        with attention_calls(self.model, len(inputs["input_ids"]), zero) as calls:
            outputs = run(self.model, inputs)
        return outputs, calls.weights


def mean_entropy(P: Tensor, real: Tensor) -> Tensor:
    """The mean entropy of the real queries of a sentence, then of sentences: [b h i j] and [b i] -> [h]."""
    P = P.to(torch.float64)
    rest = (1 - P.sum(-1, keepdim=True)).clamp_min(0)
    whole = torch.cat([P, torch.where(rest > 1e-6, rest, 0)], -1)
    entropy = -torch.special.xlogy(whole, whole).sum(-1).masked_fill(~real.unsqueeze(1), 0)  # [b h i]
    return (entropy.sum(-1) / real.sum(-1, keepdim=True)).mean(0)


def batch_of_texts(model: Any, tokenizer: Any) -> dict[str, Tensor]:
    """The texts as one padded batch. A decoder reads its start token, then a text without the end token."""
    read = tokenizer(list(TEXTS), padding=True, return_tensors="pt")
    inputs = {name: read[name] for name in ("input_ids", "attention_mask")}
    if is_two_sided(model):
        start = model.config.decoder_start_token_id
        start = model.generation_config.decoder_start_token_id if start is None else start
        end = {tokenizer.eos_token_id} if tokenizer.num_special_tokens_to_add() else set()
        rows = [[start, *(token for token in tokenizer(text)["input_ids"] if token not in end)] for text in _targets()]
        written = tokenizer.pad({"input_ids": rows}, return_tensors="pt")
        inputs |= {f"decoder_{name}": written[name] for name in ("input_ids", "attention_mask")}
    return inputs


@torch.no_grad()
def run(model: nn.Module, inputs: dict[str, Any]) -> Tensor:
    """Logits, last hidden states, or the first other output, which is for tokens if there is one: [b, i, e]."""
    outputs = model(**inputs)
    named = [getattr(outputs, name, None) for name in ("logits", "last_hidden_state")]
    given = [each for each in [*named, *outputs.values()] if isinstance(each, Tensor)]
    found = [each for each in given if each.ndim == 3] or [each.unsqueeze(1) for each in given if each.ndim == 2]
    if not found:
        raise NotCheckedError("the model gives no vectors")
    return found[0]
