"""Hugging Face models with their tokenizers: how they read text, write missing targets, and are run and observed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from inspect import signature
from pathlib import Path
from typing import Any, cast

from torch import Tensor, nn

from attnworks.core.display import listed_layers
from attnworks.core.errors import UsageError
from attnworks.core.places import Kind, Slot
from attnworks.hf import quiet
from attnworks.hf.anatomy import (
    HFPart,
    attention_kinds,
    hf_anatomy,
    hf_layers,
    model_kind,
    problem_of_blocks,
    projections_by_module,
    slots_by_module,
)
from attnworks.hf.attention_hook import attention_hook
from attnworks.hf.body import accepted, last_stream
from attnworks.hf.evidence.inputs import probe_body
from attnworks.hf.folder import save_hf
from attnworks.hf.observed_pass import LayerNames, ObservedPass, edited_calls, observe_attention
from attnworks.hf.open import open_model
from attnworks.hf.standard import nonstandard_part, to_standard
from attnworks.text.tokenizers import DecoderReader, HuggingFaceReader, decoder_row, ended
from attnworks.text.tokens import Batch, TokenRow, collate
from attnworks.traces.layer import linear_queries
from attnworks.traces.streams import Stacks, hook_streams, stacks_of
from attnworks.traces.subject import LayerHook, Subject
from attnworks.training.objectives.contract import Abilities, Outputs


class HFSubject(Subject):
    """Any model of transformers that computes attention through its interface, with its tokenizer.

    tokenizer    without it the subject runs on batches alone
    mask_id      the token that stands for a hidden word; by default that of the tokenizer
    inputs       batch -> keyword arguments of the model, for one that reads something else than token ids
    """

    heal_rate = 5e-5

    def __init__(
        self,
        model: nn.Module,
        name: str = "model",
        tokenizer: Any = None,
        *,
        max_length: int | None = None,
        mask_id: int | None = None,
        inputs: Callable[[Batch], dict[str, Any]] | None = None,
    ) -> None:
        self.name, self._tokenizer, self._mask_id, self._inputs = name, tokenizer, mask_id, inputs
        self._set_model(model)
        if tokenizer is not None:
            self._set_tokenizer(tokenizer, max_length)

    @classmethod
    def open(
        cls,
        path: str,
        *,
        device: str = "cpu",
        dtype: str = "float32",
        max_length: int | None = None,
        tokenizer: Any = None,
    ) -> HFSubject:
        """A folder, or an id in the local cache; an error for anything else. A given tokenizer comes first."""
        opened = open_model(path, device=device, dtype=dtype)
        found = opened.tokenizer if tokenizer is None else tokenizer
        subject = cls(opened.model, opened.name).with_tokenizer(found, max_length)
        subject.remarks = opened.remarks
        return subject

    def standard(self) -> HFSubject:
        """The same subject as a model that transformers alone can represent; an error where it cannot."""
        model = to_standard(self.model)
        if (reason := nonstandard_part(model)) is not None:
            asked, expected = f"a plain model of {self.name}", "a model that transformers alone can represent"
            raise UsageError(asked, expected, reason, "keep the folder that attnworks writes, and open it by attnworks")
        return self if model is self.model else self.with_model(model)

    def _write(self, folder: Path) -> None:
        save_hf(self.model, folder)
        if self._tokenizer is not None:
            with quiet():
                self._tokenizer.save_pretrained(folder)

    def _edited_calls(self) -> AbstractContextManager[None]:
        return edited_calls(self.model, self.name, LayerNames(self._kinds, self._slots), self._edits)

    def _set_model(self, model: nn.Module) -> None:
        self.model = model
        self.body: nn.Module = probe_body(model)
        self.blocks = hf_anatomy(model)
        if problem := problem_of_blocks(model):
            self.no_blocks = f"a block of this model is no sum of the stream and its parts: {problem}"
        self.abilities = _abilities(model, self._mask_id)
        self._kinds = attention_kinds(model)
        self._stacks = stacks_of(self.blocks) or _guess_stacks(self.body, self._kinds)
        self._weight_readers = {slot: part.weights for slot, part in self.layers.items() if part.weights is not None}
        self._slots, self._projections = slots_by_module(model), projections_by_module(model)
        self._bilinear: dict[Slot, bool] = {}
        self._at_softmax: set[Slot] | None = None
        self._passed_over: dict[Slot, str] = {}

    @property
    def layers(self) -> Mapping[Slot, HFPart]:
        """Every attention layer whose heads are known."""
        return hf_layers(self.model)

    def _set_tokenizer(self, tokenizer: Any, max_length: int | None) -> None:
        """A tokenizer may have more ids than the embedding; padding, which is masked, then is 0."""
        asked = f"text for {self.name}"
        if tokenizer is None:
            remedy = "pass tokenizer=..., for example a transformers.AutoTokenizer, or save one into the model's folder"
            raise UsageError(asked, "a tokenizer beside the model", "none", remedy)
        if (reads := getattr(self.model, "main_input_name", "input_ids")) != "input_ids":
            raise UsageError(
                asked, "a model that reads text", f"one that reads {reads}", "use attnworks.traces.adapted"
            )
        self._tokenizer = tokenizer
        if isinstance(tokenizer.mask_token_id, int):
            self._mask_id = tokenizer.mask_token_id
            self.abilities = replace(self.abilities, mask_id=self._mask_id)
        self.source = HuggingFaceReader(tokenizer, self.max_length, max_length)
        size, _ = self.vocabulary_sizes
        if size is not None and self.source.pad_id >= size:
            self.source.pad_id = 0
        if self.abilities.kind == "encoder-decoder":
            self.target = DecoderReader(tokenizer, _start_token(self.model, self.name), self.max_length, max_length)
            self.target.pad_id = self.source.pad_id

    @property
    def max_length(self) -> int | None:
        """None if nothing limits positions, as with T5's relative ones. MPT calls them max_seq_len.

        RoBERTa numbers positions from the one after the padding token's id, and so has fewer than its config says. Its
        table of positions has a row for padding.
        """
        config: Any = getattr(self.model, "config", None)
        positions = getattr(config, "max_position_embeddings", getattr(config, "max_seq_len", None))
        if not isinstance(positions, int) or positions <= 0:
            return None
        tables = (table for name, table in self.model.named_modules() if name.endswith("position_embeddings"))
        padding = next((row for table in tables if (row := getattr(table, "padding_idx", None)) is not None), None)
        return positions if padding is None else positions - padding - 1

    @property
    def vocabulary_sizes(self) -> tuple[int | None, int | None]:
        model: Any = self.model
        try:
            size = model.get_input_embeddings().num_embeddings
        except (AttributeError, NotImplementedError):
            size = None
        return size, size

    @property
    def example_text(self) -> str:
        """A sentence, with a hidden word if the model predicts hidden words."""
        if self.abilities.kind == "encoder" and self.abilities.vocabulary and self._mask_id is not None:
            return f"The capital of France is {self.token(self._mask_id)} ."
        return "The animal did not cross the street because it was too tired ."

    def write_targets(self, sources: Sequence[TokenRow]) -> list[TokenRow]:
        """The model's greedy translations, without edits; the sources themselves, if it writes none from token ids."""
        model, tokenizer = cast("Any", self.model), self._tokenizer
        assert self.source is not None and isinstance(self.target, DecoderReader)
        start, pad = self.target.start, self.source.pad_id
        if not _writes(model):
            return [decoder_row(start, row.text_ids) for row in sources]
        read = collate(sources, pad).to(model.device)
        cut = read.ids.shape[1] + 10
        with attention_hook(None):
            written = model.generate(
                read.ids,
                attention_mask=read.real.long(),
                max_new_tokens=cut if self.max_length is None else min(cut, self.max_length - 1),
                num_beams=1,
                do_sample=False,
                use_cache=_same_depths(model.config),
            )
        endings = _ids(model.generation_config.eos_token_id) | {pad, tokenizer.eos_token_id}
        special = {*tokenizer.all_special_ids} - {tokenizer.unk_token_id}
        return [decoder_row(start, ended(row[1:], endings), special) for row in written.tolist()]

    def _run(self, batch: Batch, hook: LayerHook | None, *, logits: bool) -> Outputs:
        given = self._token_ids(batch) if self._inputs is None else self._inputs(batch)
        if hook is None:
            return self._forward(given, batch, logits)
        names = LayerNames(self._kinds, self._slots)
        observed = ObservedPass(names, self._weight_readers, self.bilinear, batch, hook, self._projections)
        with ExitStack() as stack:
            stack.enter_context(observe_attention(self.model, softmax=self._at_softmax != set()))
            stack.enter_context(hook_streams(self._stacks, batch, hook))
            stack.enter_context(observed.hook_inputs())
            stack.enter_context(attention_hook(observed.attention))
            outputs = self._forward(given, batch, logits)
        observed.check_seen(self.name)
        self._at_softmax = observed.at_softmax | (self._at_softmax or set())
        self._passed_over = observed.passed_over | self._passed_over
        return outputs

    def _forward(self, given: dict[str, Tensor], batch: Batch, logits: bool) -> Outputs:
        """The output layer runs if logits are wanted, and in a model (T5) whose body cannot run without it."""
        model: Any = self.model if logits else self.body
        last = batch.source if batch.target is None else batch.target
        with last_stream(model, last.ids.shape) as hidden:
            outputs = model(**accepted(model, given))
        found = outputs.logits if logits else None
        if found is not None and self.abilities.vocabulary and found.shape[:2] != last.ids.shape:
            expected, got = f"one row for each of {last.ids.shape[1]} tokens", f"{found.shape[1]} rows"
            raise UsageError(f"logits of {self.name}", expected, got, "choose what needs no loss, or another model")
        return Outputs(hidden.tensor(self.name), found)

    def _token_ids(self, batch: Batch) -> dict[str, Any]:
        """The model's arguments. MobileBERT's embedding of a token also reads the next one, which may be padding.

        Its padding is embedded as zero, as the end of an unpadded sentence is, so that padding does not count. Types of
        tokens are those of a tokenizer for two texts; a model with one type does not get them.
        """
        source, target = batch.source, batch.target
        given: dict[str, Any] = {"input_ids": source.ids, "attention_mask": source.real.long()}
        model: Any = self.model
        if source.type_ids is not None and getattr(model.config, "type_vocab_size", 2) != 1:
            given["token_type_ids"] = source.type_ids
        if getattr(model.config, "trigram_input", False):
            embedded = model.get_input_embeddings()(given.pop("input_ids"))
            given["inputs_embeds"] = embedded * source.real.unsqueeze(-1)
        if target is not None:
            given |= {"decoder_input_ids": target.ids, "decoder_attention_mask": target.real.long()}
        if self.abilities.kind != "encoder":
            given["use_cache"] = False
        return given

    def remarks_on_layers(self) -> tuple[str, ...]:
        remarks: list[str] = []
        if self._at_softmax:
            found = listed_layers(sorted(self._at_softmax))
            remarks.append(f"observed at the softmax, as the model computes attention in its own code: {found}")
        for why in dict.fromkeys(self._passed_over.values()):
            slots = [slot for slot, other in self._passed_over.items() if other == why]
            remarks.append(f"passed over: {listed_layers(slots)} ({why})")
        for name, slots in self._mixers().items():
            remarks.append(f"passed over: {listed_layers(slots)} (no attention, but {name})")
        if towers := self._other_towers():
            remarks.append(f"not examined: {', '.join(towers)}, as only the part that reads text is")
        return tuple(remarks)

    def _other_towers(self) -> list[str]:
        """The parts of a model that read pictures or sound."""
        inputs = {name: {*_main_inputs(part)} for name, part in self.model.named_modules()}
        return [name for name, found in inputs.items() if found and "input_ids" not in found]

    def _mixers(self) -> dict[str, list[Slot]]:
        """The class of each block without attention -> its layers."""
        found: dict[str, list[Slot]] = {}
        for kind, blocks in self._stacks.items():
            for layer, block in enumerate(blocks):
                if not any(module in self._kinds for module in block.modules()):
                    found.setdefault(type(block).__name__, []).append(Slot(kind, layer))
        return found

    def bilinear(self, slot: Slot, X: Tensor | None, Q: Tensor) -> bool:
        """Whether queries are linear in X. It depends on the architecture alone, and is computed once per layer."""
        if slot not in self._bilinear:
            read_weights = self._weight_readers.get(slot)
            if read_weights is None or X is None:
                return False
            self._bilinear[slot] = linear_queries(X, Q, read_weights())
        return self._bilinear[slot]


def _main_inputs(part: nn.Module) -> Iterator[str]:
    """What a part of a model and the parts inside it read: ids of tokens, pictures, sound."""
    return (module.main_input_name for module in part.modules() if hasattr(module, "main_input_name"))  # pyright: ignore[reportReturnType]


def _guess_stacks(base: nn.Module, kinds: dict[nn.Module, Kind]) -> Stacks:
    """Outermost lists of modules that hold attention: the blocks of a model whose family is not known."""
    guessed: dict[Kind, list[nn.Module]] = {}
    inside: set[nn.Module] = set()
    for module in base.modules():
        if not isinstance(module, nn.ModuleList) or module in inside:
            continue
        held = {kinds[part] for block in module for part in block.modules() if part in kinds}
        if held:
            inside.update(module.modules())
            guessed.setdefault("decoder" if "decoder" in held else "encoder", []).extend(module)
    return guessed


def _abilities(model: Any, mask_id: int | None) -> Abilities:
    name = type(model).__name__
    vocabulary = getattr(model, "get_output_embeddings", lambda: None)() is not None
    classes = model.config.num_labels if name.endswith("ForSequenceClassification") else None
    ends = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    ends = ends or getattr(model.config, "eos_token_id", None)
    return Abilities(model_kind(model), vocabulary, classes, mask_id, ends[0] if isinstance(ends, list) else ends)


def _writes(model: Any) -> bool:
    """Whether a model generates from token ids; some, such as Pop2Piano, do from sound."""
    generates = getattr(model, "can_generate", bool)()
    return bool(generates) and next(iter(signature(model.generate).parameters)) in ("inputs", "input_ids")


def _ids(found: Any) -> set[int]:
    return set(found) if isinstance(found, list | tuple) else {found}


def _same_depths(config: Any) -> bool:
    """Whether T5's decoder has as many layers as its encoder, as the cache of transformers assumes."""
    layers = getattr(config, "num_decoder_layers", None)
    return layers is None or layers == config.num_hidden_layers


def _start_token(model: Any, name: str) -> int:
    start = getattr(model.config, "decoder_start_token_id", None)
    if not isinstance(start, int):
        start = getattr(getattr(model, "generation_config", None), "decoder_start_token_id", None)
    if isinstance(start, int):
        return start
    expected = "decoder_start_token_id in config.json"
    raise UsageError(f"the start token of {name}", expected, "none", "add it to the config")
