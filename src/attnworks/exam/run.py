"""The examination itself."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

from attnworks.data.passages import Passage, Side, embedded, from_texts
from attnworks.decoding.evaluating import held_still
from attnworks.errors import UsageError
from attnworks.exam.examination import Examination
from attnworks.exam.examiner import TOKENS_PER_BATCH, Examiner, Request
from attnworks.exam.findings import find
from attnworks.exam.pinning import one_sentence, pin_maps
from attnworks.exam.plan import choose_measures, fit_to_maps, without_weights
from attnworks.exam.widened import InFloat64
from attnworks.measures.contract import Setting
from attnworks.objectives.own_callable import OwnFunction
from attnworks.receipt import Receipt
from attnworks.reshape.history import receipts_of
from attnworks.reshape.lineage import LINEAGE, lineage_of
from attnworks.traces.removing import without
from attnworks.traces.subject import Examinee, examinee_of
from attnworks.traces.text import read_text
from attnworks.training.distributed import Team

SENTENCES = 256


def examine(
    model: Any,
    tokenizer: Any = None,
    texts: Sequence[str] | Sequence[Passage] | None = None,
    *,
    measures: Sequence[str] | str | None = None,
    objective: str | OwnFunction | None = None,
    without: Collection[str] = (),
    pin: Sequence[str] | None = None,
    max_tokens: int | None = None,
    tokens_per_batch: int = TOKENS_PER_BATCH,
    seed: int = 0,
    name: str | None = None,
    receipts: Sequence[Receipt] | None = None,
) -> Examination:
    """What every head of a model does, on texts (by default the embedded corpus).

    model      a path, a Hugging Face model, or one of attnworks; with its tokenizer, or vocabulary, beside it
    measures   names of measures; None for the default set, ["all"] for everything
    objective  "lm", "mlm", "seq2seq", "embedding", "labels:FILE", or a function of your own, for importance
    without    parts to run without: "skip", "mlp", "norm"
    pin        sentences whose attention maps are kept for display; None for one of the texts, of 32 tokens or fewer
    receipts   of the reshapes that made a model in memory, first to last, so that `attnworks.compare` can match its
               heads to those of the original; None for those in the folder, if `model` is a path
    """
    examinee = examinee_of(model, tokenizer, name, max_tokens)
    if receipts is None:
        receipts = receipts_of(str(model)) if isinstance(model, str | Path) else ()
    if texts is None:
        passages, spec = embedded(SENTENCES), "grammar"
    else:
        passages, spec = _as_passages(texts), "texts"
    measures = measures.split(",") if isinstance(measures, str) else measures
    pinned = None if pin is None else tuple(pin)
    request = Request(measures, objective, tuple(without), pinned, tokens_per_batch, seed)
    return run_examination(examinee, passages, request, about={"name": spec}, receipts=receipts)


def _as_passages(texts: Sequence[str] | Sequence[Passage]) -> list[Passage]:
    if isinstance(texts, str):
        raise UsageError(
            asked="texts", expected="a list of them", got="a single string", remedy="put it into a list: [text]"
        )
    passages = [text if isinstance(text, Passage) else Passage(Side(text)) for text in texts if text != ""]
    return passages or from_texts([])[0]


def run_examination(
    examinee: Examinee,
    passages: Sequence[Passage],
    request: Request,
    *,
    about: dict[str, Any] | None = None,
    receipts: Sequence[Receipt] = (),
    team: Team | None = None,
    begin: Callable[[int], None] = lambda steps: None,
    advance: Callable[[int], None] = lambda sentences: None,
) -> Examination:
    """Walk the model over every batch that is this process's, fold, merge with the others, and say what was found.

    receipts    of the reshapes that made the model, first to last
    """
    team = Team() if team is None else team
    with held_still(examinee.subject.model):
        text = read_text(examinee, passages, request.tokens_per_batch)
        pinned = (
            one_sentence(text)
            if request.pin is None
            else [read_text(examinee, from_texts([line])[0], request.tokens_per_batch) for line in request.pin]
        )
        chosen = choose_measures(request.measures, Setting(text.longest, request.seed, len(text.kept), text.lengths))
        weightless = without_weights(examinee.subject.model)
        measures = fit_to_maps(chosen, request.measures, weightless)
        exam = Examiner(examinee, text, measures, request, team, advance)
        if len(measures) < len(chosen):
            left_out = ", ".join(measure.name for measure in chosen if measure not in measures)
            exam.notes.append(
                f"left out: {left_out}; {weightless[0]} has no attention weights, but mixtures of any sign"
            )
        with InFloat64(examinee.subject.model, bool(request.without)), without(examinee.subject, request.without):
            begin(exam.work())
            exam.run()
            pins = tuple(pin_maps(examinee, line) for line in pinned)
            about_model = exam.describe()
    if (lineage := lineage_of(receipts, about_model["heads"])) is not None:
        about_model[LINEAGE] = lineage.to_json()
    readings = exam.readings()
    return Examination(
        model=about_model, corpus={**(about or {}), **text.about()}, readings=readings,
        findings=find(readings), notes=tuple(exam.notes), pins=pins,
    )  # fmt: skip
