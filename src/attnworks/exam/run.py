"""The examination itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from attnworks.core.team import Team
from attnworks.exam.choice import choose_measures, fit_to_maps, without_weights
from attnworks.exam.examination import Examination, one_sentence, pin_maps
from attnworks.exam.examiner import Examiner, Request
from attnworks.exam.findings import find
from attnworks.exam.lineage import LINEAGE, ReshapeRecord, lineage_of
from attnworks.exam.measure import Setting
from attnworks.models.modes import InFloat64, held_still
from attnworks.text.passages import Passage, from_texts
from attnworks.traces.edits import without
from attnworks.traces.subject import Examinee
from attnworks.traces.text import read_text


def run_examination(
    examinee: Examinee,
    passages: Sequence[Passage],
    request: Request,
    *,
    about: dict[str, Any] | None = None,
    receipts: Sequence[ReshapeRecord] = (),
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
