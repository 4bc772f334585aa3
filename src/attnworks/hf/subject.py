"""Hugging Face models with their tokenizers: how they read text, write missing targets, and are run and observed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

from torch import Tensor, nn

from attnworks.core.errors import UsageError
from attnworks.hf.anatomy import attention_kinds, foreign_anatomy, groups_of, model_kind
from attnworks.hf.families import FAMILIES
from attnworks.hf.observe import Turn, bypassed, interface_shown, observed_by, own_heads_shown
from attnworks.hf.open import open_pretrained
from attnworks.models.anatomy import BlockAnatomy
from attnworks.text.tokenizers import DecoderReader, HuggingFaceReader, decoder_row, ended
from attnworks.text.tokens import Kind, TextBatch, TokenRow, collate_tokens
from attnworks.traces.layer import Slot, linear_queries
from attnworks.traces.subject import Examinee, Spectator, Stacks, stacks_of, watching_streams, weight_readers
from attnworks.training.objectives.contract import Abilities, Outputs


class ForeignSubject:
    """Any model of transformers that computes attention through its interface.

    given    batch -> keyword arguments of the model, for those that read something else than token ids
    """

    def __init__(
        self,
        model: nn.Module,
        name: str = "model",
        mask_id: int | None = None,
        given: Callable[[TextBatch], dict[str, Any]] | None = None,
    ) -> None:
        self.name, self.model = name, model
        self.given = self._token_ids if given is None else given
        self.base: nn.Module = getattr(model, "base_model", model)
        self.blocks: Sequence[BlockAnatomy] | None = foreign_anatomy(model)
        self.abilities = _abilities(model, mask_id)
        self._kinds = attention_kinds(model)
        self._stacks = stacks_of(self.blocks) or _guess_stacks(self.base, self._kinds)
        self._readers = weight_readers(self.blocks)
        self._bilinear: dict[Slot, bool] = {}

    def again(self, model: nn.Module) -> ForeignSubject:
        """The same subject with another model."""
        given = None if self.given == self._token_ids else self.given
        return ForeignSubject(model, self.name, self.abilities.mask_id, given)

    def run(self, batch: TextBatch, spectator: Spectator | None = None, *, scores: bool = False) -> Outputs:
        given = self.given(batch)
        if spectator is None:
            return self._forward(given, scores)
        turn = Turn(self._kinds, self._readers, self.bilinear, batch, spectator)
        with ExitStack() as stack:
            own = any(groups_of(module) is not None for module in self._kinds)
            stack.enter_context(own_heads_shown(self.model) if own else interface_shown(self.model))
            stack.enter_context(watching_streams(self._stacks, batch, spectator))
            stack.enter_context(turn.watching_inputs(self._kinds if self.blocks is not None else ()))
            stack.enter_context(observed_by(turn.look))
            outputs = self._forward(given, scores)
        if not turn.seen:
            raise bypassed(self.model)
        return outputs

    def _forward(self, given: dict[str, Tensor], scores: bool) -> Outputs:
        """The model's head runs if scores are asked for, and where a model (T5) has no body without one."""
        body: Any = self.base
        if not scores and body is not self.model:
            return Outputs(body(**given).last_hidden_state)
        headless = self.abilities.vocabulary and body is self.model
        body = body.get_decoder() if headless else body
        hidden: list[Tensor] = []
        with ExitStack() as hooks:
            for part in _bodies(body):
                handle = part.register_forward_hook(lambda *call: hidden.append(call[-1].last_hidden_state))
                hooks.callback(handle.remove)
            outputs = self.model(**given)
        return Outputs(hidden[-1], outputs.logits if scores else None)

    def _token_ids(self, batch: TextBatch) -> dict[str, Any]:
        """What the model reads. MobileBERT's embedding of a token also reads the next one, which may be padding.

        Its padding is embedded as zero, as the end of an unpadded sentence is, so that padding does not count.
        """
        source, target = batch.source, batch.target
        given: dict[str, Any] = {"input_ids": source.ids, "attention_mask": source.real.long()}
        model: Any = self.model
        if getattr(model.config, "trigram_input", False):
            embedded = model.get_input_embeddings()(given.pop("input_ids"))
            given["inputs_embeds"] = embedded * source.real.unsqueeze(-1)
        if target is not None:
            given |= {"decoder_input_ids": target.ids, "decoder_attention_mask": target.real.long()}
        if self.abilities.kind != "encoder":
            given["use_cache"] = False
        return given

    def bilinear(self, slot: Slot, X: Tensor | None, Q: Tensor) -> bool:
        """Whether queries are linear in X; a property of the architecture, and so asked once."""
        if slot not in self._bilinear:
            read_weights = self._readers.get(slot)
            if read_weights is None or X is None:
                return False
            self._bilinear[slot] = linear_queries(X, Q, read_weights())
        return self._bilinear[slot]


def _bodies(body: Any) -> list[nn.Module]:
    """The body, and its decoder: a model such as OPT runs that without the body around it."""
    inner = getattr(body, "decoder", None)
    return [body, inner] if isinstance(inner, nn.Module) and hasattr(inner, "layers") else [body]


def _guess_stacks(base: nn.Module, kinds: dict[nn.Module, Kind]) -> Stacks:
    """Outermost lists of modules that hold attention: the blocks of a model whose family is not known."""
    guessed: dict[Kind, list[nn.Module]] = {}
    inside: set[nn.Module] = set()
    for module in base.modules():
        if not isinstance(module, nn.ModuleList) or module in inside:
            continue
        held = [{kinds[part] for part in block.modules() if part in kinds} for block in module]
        if held and all(held):
            inside.update(module.modules())
            guessed.setdefault("decoder" if "decoder" in held[0] else "encoder", []).extend(module)
    return guessed


def _abilities(model: Any, mask_id: int | None) -> Abilities:
    name = type(model).__name__
    vocabulary = getattr(model, "get_output_embeddings", lambda: None)() is not None
    classes = model.config.num_labels if name.endswith("ForSequenceClassification") else None
    ends = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    ends = ends or getattr(model.config, "eos_token_id", None)
    return Abilities(model_kind(model), vocabulary, classes, mask_id, ends[0] if isinstance(ends, list) else ends)


def examinee_at(path: str, *, max_tokens: int | None, device: str, dtype: str) -> Examinee:
    """A folder, or an id in the local cache; an error for anything else."""
    pretrained = open_pretrained(path, device=device, dtype=dtype)
    return foreign_examinee(pretrained.model, pretrained.tokenizer, pretrained.name, max_tokens)


def examinee_with(model: Any, tokenizer: Any, name: str | None, max_tokens: int | None) -> Examinee | None:
    """A model of transformers; None for another model."""
    if not isinstance(model, nn.Module) or not hasattr(model, "set_attn_implementation"):
        return None
    return foreign_examinee(model, tokenizer, name or type(model).__name__, max_tokens)


def foreign_examinee(model: Any, tokenizer: Any, name: str, max_tokens: int | None = None) -> Examinee:
    """A Hugging Face model with its tokenizer."""
    if tokenizer is None:
        raise UsageError(
            asked=f"an examination of {name}",
            expected="a tokenizer beside the model",
            got="none",
            remedy="save the tokenizer into the same folder, or pass one in Python",
        )
    if (reads := getattr(model, "main_input_name", "input_ids")) != "input_ids":
        raise UsageError(
            asked=f"an examination of {name}",
            expected="a model that reads text",
            got=f"one that reads {reads}",
            remedy="choose another model, or show it through attnworks.traces.adapted",
        )
    mask_id = tokenizer.mask_token_id if isinstance(tokenizer.mask_token_id, int) else None
    subject, longest = ForeignSubject(model, name, mask_id), longest_input(model)
    reader = HuggingFaceReader(tokenizer, longest, max_tokens)
    words = _known_ids(model)
    if words is not None and reader.pad_id >= words:
        reader.pad_id = 0

    def spell(token: int) -> str:
        return tokenizer.convert_ids_to_tokens(token) or f"<{token}>"

    if subject.abilities.kind != "encoder-decoder":
        return Examinee(subject, reader, spell=(spell, spell), words=(words, words))
    start = _start_token(model, name)
    special = {*tokenizer.all_special_ids} - {tokenizer.unk_token_id}

    def write(model: Any, sources: Sequence[TokenRow]) -> list[TokenRow]:
        if not getattr(model, "can_generate", lambda: False)():
            return [decoder_row(start, row.text_ids) for row in sources]
        read = collate_tokens(sources, reader.pad_id).to(model.device)
        cut = read.ids.shape[1] + 10
        written = model.generate(
            read.ids,
            attention_mask=read.real.long(),
            max_new_tokens=cut if longest is None else min(cut, longest - 1),
            num_beams=1,
            do_sample=False,
            use_cache=_as_deep(model.config),
        )
        endings = _ids(model.generation_config.eos_token_id) | {reader.pad_id, tokenizer.eos_token_id}
        return [decoder_row(start, ended(row[1:], endings), special) for row in written.tolist()]

    target = DecoderReader(tokenizer, start, longest, max_tokens)
    target.pad_id = reader.pad_id
    return Examinee(subject, reader, target, write, (spell, spell), (words, words))


def _known_ids(model: Any) -> int | None:
    try:
        return model.get_input_embeddings().num_embeddings
    except (AttributeError, NotImplementedError):
        return None


def _ids(found: Any) -> set[int]:
    return set(found) if isinstance(found, list | tuple) else {found}


def _as_deep(config: Any) -> bool:
    """Whether T5's decoder has the encoder's layers; transformers makes its cache for as many as the encoder has."""
    layers = getattr(config, "num_decoder_layers", None)
    return layers is None or layers == config.num_hidden_layers


def _start_token(model: Any, name: str) -> int:
    start = getattr(model.config, "decoder_start_token_id", None)
    if not isinstance(start, int):
        start = getattr(getattr(model, "generation_config", None), "decoder_start_token_id", None)
    if isinstance(start, int):
        return start
    raise UsageError(
        asked=f"what the decoder of {name} reads first",
        expected="decoder_start_token_id in config.json",
        got="none",
        remedy="add it to the config",
    )


def longest_input(model: nn.Module) -> int | None:
    """How many positions a Hugging Face model has; None if nothing limits them, as with T5's relative positions.

    RoBERTa numbers positions from the one after the padding token's id, and so has fewer than its config says.
    """
    config: Any = getattr(model, "config", None)
    positions = getattr(config, "max_position_embeddings", None)
    if not isinstance(positions, int) or positions <= 0:
        return None
    family = FAMILIES.get(config.model_type)
    return positions - config.pad_token_id - 1 if family is not None and family.counts_from_padding else positions
