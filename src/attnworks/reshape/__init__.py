"""(model, text, objective) -> (new model, Receipt): project heads onto structured forms, grow, cut or swap them.

>>> import attnworks
>>> new, receipt = attnworks.reshape.project(model, texts, heads="0.*", heal=100)  # doctest: +SKIP
>>> new, receipt = attnworks.reshape.grow(model, texts, add=8)  # doctest: +SKIP
>>> new, receipt = attnworks.reshape.prune(model, texts, keep=0.5)  # doctest: +SKIP
>>> new, receipt = attnworks.reshape.swap(model, texts, to="window:window=64", max_error=0.02)  # doctest: +SKIP
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from attnworks.core.display import Progress, silent
from attnworks.reshape.contract import RESHAPES, Reshape
from attnworks.reshape.growth.grow import GROWTH_KINDS, Grow
from attnworks.reshape.growth.in_training import grow_in_training
from attnworks.reshape.growth.places import NoBottleneckError
from attnworks.reshape.projection.project import Project
from attnworks.reshape.pruning.prune import Prune
from attnworks.reshape.receipt import Receipt
from attnworks.reshape.run import ReshapeSettings, reshape_context, run_reshape
from attnworks.reshape.swapping.advice import Advice
from attnworks.reshape.swapping.advice import find_advice as advise_on
from attnworks.reshape.swapping.swap import Swap
from attnworks.reshape.texts import TextSplit, split_corpus, split_texts
from attnworks.text.passages import Passage
from attnworks.traces.subject import wrap
from attnworks.training.objectives.sentences import LossFunction

Given = Sequence[str] | Sequence[Passage] | str


def project(
    model: Any,
    texts: Given = "grammar",
    *,
    tokenizer: Any = None,
    heads: str,
    form: str = "auto",
    window: int = 2,
    eps: float = 0.02,
    sparsity: float = 0.05,
    objective: str | LossFunction | None = None,
    heal: int = 0,
    heal_by: str = "objective",
    rate: float | None = None,
    seed: int = 0,
    tell: Progress = silent,
) -> tuple[Any, Receipt]:
    """A copy of the model with these heads in structured forms, and the receipt; see `Project` for the options.

    model      a path, or a Hugging Face model or Transformer of attnworks with its tokenizer or vocabulary
    texts      a corpus by name, or texts, of which every fourth is held out for evaluation
    objective  as of `attnworks.examine`
    heal       steps of training after the change, with Adam at `rate` (by default 3e-4; 5e-5 for Hugging Face models)
    heal_by    what healing lowers: "objective", or "distil", the distance to the model before after every block
    tell       called with what is being done, how many steps of it are done, and of how many
    """
    asked = Project(heads=heads, form=form, window=window, eps=eps, sparsity=sparsity)
    return _reshape(asked, model, tokenizer, texts, ReshapeSettings(objective, heal, rate, seed=seed, by=heal_by), tell)


def grow(
    model: Any,
    texts: Given = "grammar",
    *,
    tokenizer: Any = None,
    add: int = 0,
    where: str = "auto",
    kinds: Sequence[str] = GROWTH_KINDS,
    by: str = "fisher",
    compare: bool = False,
    objective: str | LossFunction | None = None,
    heal: int = 0,
    heal_by: str = "objective",
    rate: float | None = None,
    seed: int = 0,
    tell: Progress = silent,
) -> tuple[Any, Receipt]:
    """A copy of the model with wider or more heads where that lowers the loss, and the receipt; see `Grow`.

    NoBottleneckError where growing would not pay. Before the long work, `tell` gets a message with a total of 0: how
    many sentences and passes growing takes, and about how long. After that it gets the percentage that is done. The
    other options are those of `project`.
    """
    asked = Grow(add=add, where=where, kinds=tuple(kinds), by=by, compare=compare)
    return _reshape(asked, model, tokenizer, texts, ReshapeSettings(objective, heal, rate, seed=seed, by=heal_by), tell)


def prune(
    model: Any,
    texts: Given = "grammar",
    *,
    tokenizer: Any = None,
    keep: float | None = None,
    heads: str = "auto",
    by: str = "ablation",
    evenly: bool = False,
    compare: bool = False,
    objective: str | LossFunction | None = None,
    heal: int = 0,
    heal_by: str = "objective",
    rate: float | None = None,
    seed: int = 0,
    tell: Progress = silent,
) -> tuple[Any, Receipt]:
    """A copy of the model with fewer heads, truly smaller, and the receipt; see `Prune`.

    The other options are those of `project`.
    """
    asked = Prune(keep=keep, heads=heads, by=by, evenly=evenly, compare=compare)
    return _reshape(asked, model, tokenizer, texts, ReshapeSettings(objective, heal, rate, seed=seed, by=heal_by), tell)


def swap(
    model: Any,
    texts: Given = "grammar",
    *,
    tokenizer: Any = None,
    to: str | Sequence[str] = (),
    layers: str = "auto",
    max_error: float = 0.02,
    length: int | None = None,
    objective: str | LossFunction | None = None,
    heal: int = 0,
    heal_by: str = "objective",
    rate: float | None = None,
    seed: int = 0,
    tell: Progress = silent,
) -> tuple[Any, Receipt]:
    """A copy of the model with other attention mechanisms in some layers, and the receipt; see `Swap`.

    The other options are those of `project`.
    """
    asked = Swap(to=(to,) if isinstance(to, str) else tuple(to), layers=layers, max_error=max_error, length=length)
    return _reshape(asked, model, tokenizer, texts, ReshapeSettings(objective, heal, rate, seed=seed, by=heal_by), tell)


def advise(
    model: Any,
    texts: Given = "grammar",
    *,
    tokenizer: Any = None,
    to: str | Sequence[str] = (),
    max_error: float = 0.02,
    length: int | None = None,
    objective: str | LossFunction | None = None,
    seed: int = 0,
    tell: Progress = silent,
) -> Advice:
    """What other mechanisms would do in each layer, and the mix that `swap` would make; the model stays as it is."""
    asked = Swap(to=(to,) if isinstance(to, str) else tuple(to), max_error=max_error, length=length)
    settings = ReshapeSettings(objective, seed=seed)
    context = reshape_context(asked, wrap(model, tokenizer), _texts(texts, seed), settings, tell)
    return advise_on(context, asked.to, max_error=max_error, length=length)


def _texts(texts: Any, seed: int) -> TextSplit:
    return split_corpus(texts, seed=seed) if isinstance(texts, str) else split_texts(texts)


def _reshape(
    asked: Reshape, model: Any, tokenizer: Any, texts: Any, settings: ReshapeSettings, tell: Progress
) -> tuple[Any, Receipt]:
    return run_reshape(asked, wrap(model, tokenizer), _texts(texts, settings.seed), settings, tell)


__all__ = ["RESHAPES", "NoBottleneckError", "Reshape", "advise", "grow", "grow_in_training", "project", "prune", "swap"]
