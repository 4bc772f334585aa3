"""A model that answers the questions of the live page."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from torch import Tensor

from attnworks.core.errors import UsageError
from attnworks.exam.examination import Examination
from attnworks.exam.examiner import ExamSettings, run_examination
from attnworks.exam.measures import PAGE_MEASURES
from attnworks.models.modes import inference_mode
from attnworks.page.blobs import rounded
from attnworks.page.contents import Contents, PageExam, exam_contents, exam_label, page_contents
from attnworks.page.sentences import EncodedSentence
from attnworks.page.server.edits import EditedModels
from attnworks.page.server.inspect import (
    ModelOutput,
    SentenceInput,
    SentencePass,
    describe_output,
    embedding_cosine,
    inspect_sentence,
    read_sentence,
    relative_change,
    unknown_words,
)
from attnworks.page.server.questions import Changes, Question
from attnworks.page.server.queue import RecentItems
from attnworks.reshape.receipt import Receipt
from attnworks.text.grammar import grammar_passages
from attnworks.text.passages import Passage, from_texts
from attnworks.traces.subject import Subject

SENTENCES_REMEMBERED = 8
"""Sentences for which the output of the original model is kept."""
UNCHANGED = Changes()
TOO_SHORT = "too short for all but a few measures, which need two tokens of text"


@dataclass(frozen=True, eq=False)
class Answer:
    """The output of the original model for a sentence, and its last residual stream."""

    read: SentenceInput
    output: ModelOutput
    hidden: Tensor


class Change(NamedTuple):
    """The outputs before and after edits, |X' - X| / |X| of the last stream, and the cosine of sentence embeddings."""

    before: ModelOutput
    after: ModelOutput
    moved: float
    cosine: float


class LiveModel:
    """A model with its edited copies, for one thread at a time.

    max_length   of a sentence
    text         the sentence that is shown first
    receipts     of the reshapes that made the model, first to last
    """

    def __init__(
        self, subject: Subject, *, max_length: int = 128, text: str | None = None, receipts: Sequence[Receipt] = ()
    ) -> None:
        self.base, self.models, self.receipts = subject, EditedModels(subject), receipts
        self.max_length = min(max_length, subject.max_length or max_length)
        assert subject.source is not None
        self._unlimited_reader = copy.copy(subject.source)
        self._unlimited_reader.max_length = None
        if text is None:
            text = self._shortened(subject.example_text or grammar_passages(1)[0].source.text)
        self.text = text
        self._answers: RecentItems[str, Answer] = RecentItems(SENTENCES_REMEMBERED)
        self._inputs: RecentItems[tuple[str, Changes], SentenceInput] = RecentItems(SENTENCES_REMEMBERED)
        passage = self._passage(text)
        exam = self._examine(passage)
        inspected = inspect_sentence(subject, self._read(passage), exam.model)
        self.first = PageExam(exam, exam_label(exam), (inspected.sentence,))

    def page(self) -> Contents:
        """The page with an examination of the first sentence."""
        possible = self.models.possible
        live = {
            "tokens": self.max_length,
            "kind": self.base.abilities.kind,
            "reshape": possible.reshape,
            "forms": {slot: list(forms) for slot, forms in possible.forms.items()},
            "mechanisms": {slot: list(specs) for slot, specs in possible.mechanisms.items()},
            "text": self.text,
        }
        return page_contents([self.first], host="live", receipts=self.receipts, live=live, largest=math.inf)

    def inspect(self, question: Question) -> dict[str, Any]:
        """The sentence with its maps, cheap measures, and the outputs before and after the edits."""
        began = time.perf_counter()
        outputs, inspected = self._inspect(self._passage(question.text), question.changes)
        pin, blobs = EncodedSentence(inspected.sentence, inspected.exam, "live").contents()
        exam = exam_contents(PageExam(inspected.exam, self.first.label, (inspected.sentence,)), [pin])
        return _reply(exam, outputs, blobs, began)

    def examine(self, question: Question) -> dict[str, Any]:
        """The default readings of the sentence; of a very short one, those of `inspect`."""
        began = time.perf_counter()
        passage = self._passage(question.text)
        if self._read(passage, question.changes).is_short:
            answer = self.inspect(question)
            return {**answer, "exam": {**answer["exam"], "notes": [TOO_SHORT]}}
        exam = self._examine(passage, question.changes)
        return _reply(exam_contents(PageExam(exam, self.first.label), []), None, {}, began)

    def _inspect(self, passage: Passage, changes: Changes) -> tuple[dict[str, Any], SentencePass]:
        """The outputs before and after the edits, and the forward pass of the edited model."""
        before = self._answer(passage) if changes else None
        subject = self.models.subject(changes)
        read = before.read if before is not None and before.read.written is None else self._read(passage, changes)
        parameters = sum(parameter.numel() for parameter in subject.model.parameters())
        inspected = inspect_sentence(subject, read, {**self.first.exam.model, "parameters": parameters})
        output, hidden = describe_output(subject, read, inspected.outputs), inspected.outputs.hidden
        if before is None:
            self._answers.put(passage.source.text, Answer(read, output, hidden))
            return self._outputs(passage, Change(output, output, 0.0, 1.0)), inspected
        if read is not before.read:  # compare the residual streams of the same target
            with inference_mode(subject.model):
                hidden = subject.run(before.read.batch(subject)).hidden
        moved, cosine = relative_change(before.hidden, hidden), embedding_cosine(before.hidden, hidden)
        return self._outputs(passage, Change(before.output, output, moved, cosine)), inspected

    def _outputs(self, passage: Passage, change: Change) -> dict[str, Any]:
        """The `Outputs` of the page; the cosine is that of models that only encode."""
        return {
            "words": change.after.words,
            "before": [output._asdict() for output in change.before.outputs],
            "after": [output._asdict() for output in change.after.outputs],
            "moved": change.moved,
            "cosine": change.cosine if self.base.abilities.kind == "encoder" else None,
            "unknown": unknown_words(self.base, passage),
        }

    def _answer(self, passage: Passage) -> Answer:
        """The output of the original model, from the cache if it is there."""

        def run() -> Answer:
            subject, read = self.base, self._read(passage)
            with inference_mode(subject.model):
                outputs = subject.run(read.batch(subject), logits=subject.has_logits)
                return Answer(read, describe_output(subject, read, outputs), outputs.hidden)

        return self._answers.get(passage.source.text, run)

    def _read(self, passage: Passage, changes: Changes = UNCHANGED) -> SentenceInput:
        """The input for the model with these edits, with the target that it writes."""
        key = passage.source.text, changes
        return self._inputs.get(key, lambda: read_sentence(self.models.subject(changes), passage))

    def _examine(self, passage: Passage, changes: Changes = UNCHANGED) -> Examination:
        """The default readings of a sentence, without role labels, for which one sentence is too few.

        Notes about missing syntax or repeated tokens are removed.
        """
        subject, read = self.models.subject(changes), self._read(passage, changes)
        if read.written is not None:
            subject = subject.with_targets([read.written.row])
        about = {"name": "this sentence"}
        settings = ExamSettings(None if changes else PAGE_MEASURES, probe=False)
        exam = run_examination(subject, [passage], settings, about=about, receipts=self.receipts)
        return replace(exam, notes=tuple(note for note in exam.notes if not note.startswith("roles.")))

    def _passage(self, text: str) -> Passage:
        """The sentence, checked; arguments of a command that are not UTF-8 have lone surrogates."""
        try:
            text.encode()
        except UnicodeEncodeError:
            remedy = "type it in a terminal that writes UTF-8"
            raise UsageError("the sentence", "text in UTF-8", "bytes that are not UTF-8", remedy) from None
        ((passage,), _) = from_texts([" ".join(text.split())])
        count, remedy = self._count(passage), "shorten it, or raise --max-length"
        if count > self.max_length:
            raise UsageError("the sentence", f"at most {self.max_length:,} tokens", f"{count:,}", remedy)
        return passage

    def _count(self, passage: Passage) -> int:
        """Number of tokens, also above the maximum of the model."""
        return len(self._unlimited_reader.read(passage.source))

    def _shortened(self, text: str) -> str:
        """The first words that fit into `max_length` tokens, at least one."""
        words = text.split()
        while len(words) > 1 and self._count(from_texts([" ".join(words)])[0][0]) > self.max_length:
            words.pop()
        return " ".join(words)


def _reply(
    exam: Mapping[str, Any], outputs: dict[str, Any] | None, blobs: Mapping[str, str], began: float
) -> dict[str, Any]:
    seconds = time.perf_counter() - began
    return {"exam": exam, "outputs": rounded(outputs), "blobs": blobs, "seconds": rounded(seconds)}
