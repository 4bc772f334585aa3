"""A model that answers the questions of the live page."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from attnworks.core.errors import UsageError
from attnworks.exam.examination import Examination
from attnworks.exam.examiner import ExamSettings, run_examination
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
    inspect_sentence,
    read_sentence,
    relative_change,
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
    """The output of the original model for a sentence."""

    read: SentenceInput
    said: ModelOutput
    hidden: Tensor


class LiveModel:
    """A model with its edited copies, for one thread at a time.

    longest    maximum tokens of a sentence
    text       the sentence that is shown first
    receipts   of the reshapes that made the model, first to last
    """

    def __init__(
        self, subject: Subject, *, longest: int = 128, text: str | None = None, receipts: Sequence[Receipt] = ()
    ) -> None:
        self.receipts = receipts
        self.base, self.models = subject, EditedModels(subject)
        positions = subject.max_length
        assert subject.source is not None
        self.longest = longest if positions is None else min(longest, positions)
        self._counting = copy.copy(subject.source)
        self._counting.max_length = None
        if text is None:
            text = self._beginning(subject.example_text or grammar_passages(1)[0].source.text)
        self.text = text
        self._heard: RecentItems[str, Answer] = RecentItems(SENTENCES_REMEMBERED)
        self._reads: RecentItems[tuple[str, Changes], SentenceInput] = RecentItems(SENTENCES_REMEMBERED)
        self.first = self._first()

    def page(self) -> Contents:
        """The page with an examination of the first sentence."""
        possible = self.models.possible
        live = {
            "tokens": self.longest,
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
        passage = self._passage(question.text)
        heard, looked = self._look(passage, question.changes)
        pin, blobs = EncodedSentence(looked.sentence, looked.exam, "live").contents()
        shown = PageExam(looked.exam, self.first.label, (looked.sentence,))
        return self._answer(exam_contents(shown, [pin]), heard, blobs, began)

    def examine(self, question: Question) -> dict[str, Any]:
        """The default readings of the sentence; of a very short one, those of `inspect`."""
        began = time.perf_counter()
        passage = self._passage(question.text)
        if self._read(passage, question.changes).is_short:
            answer = self.inspect(question)
            return {**answer, "exam": {**answer["exam"], "notes": [TOO_SHORT]}}
        exam = self._examined(passage, question.changes)
        return self._answer(exam_contents(PageExam(exam, self.first.label), []), None, {}, began)

    def _look(self, passage: Passage, changes: Changes) -> tuple[dict[str, Any], SentencePass]:
        base = self._hear(passage) if changes else None
        subject = self.models.subject(changes)
        read = base.read if base is not None and base.read.written is None else self._read(passage, changes)
        looked = inspect_sentence(subject, read, self._about(subject))
        said = describe_output(subject, read, looked.outputs)
        if base is None:
            self._heard.put(passage.source.text, Answer(read, said, looked.outputs.hidden))
            return _outputs(said, said, 0.0), looked
        after = looked.outputs.hidden
        if read is not base.read:
            with inference_mode(subject.model):
                after = subject.run(base.read.batch(subject)).hidden
        return _outputs(base.said, said, relative_change(base.hidden, after)), looked

    def _hear(self, passage: Passage) -> Answer:
        """The output of the original model, from the cache if it is there."""
        return self._heard.get(passage.source.text, lambda: self._listen(passage))

    def _listen(self, passage: Passage) -> Answer:
        subject, read = self.base, self._read(passage)
        with inference_mode(subject.model):
            outputs = subject.run(read.batch(subject), logits=subject.has_logits)
            return Answer(read, describe_output(self.base, read, outputs), outputs.hidden)

    def _read(self, passage: Passage, changes: Changes = UNCHANGED) -> SentenceInput:
        """The input for the model with these edits, with the target that it writes."""
        key = passage.source.text, changes
        return self._reads.get(key, lambda: read_sentence(self.models.subject(changes), passage))

    def _about(self, subject: Subject) -> dict[str, Any]:
        """The description of an edited model."""
        return {**self.first.exam.model, "parameters": sum(p.numel() for p in subject.model.parameters())}

    def _examined(self, passage: Passage, changes: Changes = UNCHANGED) -> Examination:
        """The default readings of a sentence, without role labels, for which one sentence is too few.

        Notes about missing syntax or repeated tokens are removed.
        """
        subject, read = self.models.subject(changes), self._read(passage, changes)
        if read.written is not None:
            subject = subject.with_targets([read.written.row])
        about = {"name": "this sentence"}
        exam = run_examination(subject, [passage], ExamSettings(), about=about, receipts=self.receipts)
        return replace(exam, notes=tuple(note for note in exam.notes if not note.startswith("roles.")))

    def _passage(self, text: str) -> Passage:
        if not _is_text(text):
            raise UsageError(
                "the sentence", "text in UTF-8", "bytes that are none", "type it in a terminal that writes UTF-8"
            )
        ((passage,), _) = from_texts([" ".join(text.split())])
        count = self._count(passage)
        if count > self.longest:
            raise UsageError(
                "the sentence", f"at most {self.longest:,} tokens", f"{count:,}", "shorten it, or raise --max-tokens"
            )
        return passage

    def _count(self, passage: Passage) -> int:
        """Number of tokens, also above the maximum of the model."""
        return len(self._counting.read(passage.source))

    def _beginning(self, text: str) -> str:
        """The first words that fit into `longest` tokens, at least one."""
        words = text.split()
        while len(words) > 1 and self._count(from_texts([" ".join(words)])[0][0]) > self.longest:
            words.pop()
        return " ".join(words)

    def _first(self) -> PageExam:
        passage = self._passage(self.text)
        exam = self._examined(passage)
        looked = inspect_sentence(self.base, self._read(passage), exam.model)
        return PageExam(exam, exam_label(exam), (looked.sentence,))

    def _answer(
        self, exam: Mapping[str, Any], outputs: dict[str, Any] | None, blobs: Mapping[str, str], began: float
    ) -> dict[str, Any]:
        seconds = time.perf_counter() - began
        return {"exam": exam, "outputs": rounded(outputs), "blobs": blobs, "seconds": rounded(seconds)}


def _is_text(text: str) -> bool:
    """False for arguments of a command that are not UTF-8, which Python reads as lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _outputs(before: ModelOutput, after: ModelOutput, far: float) -> dict[str, Any]:
    return {
        "words": after.words,
        "before": [output._asdict() for output in before.outputs],
        "after": [output._asdict() for output in after.outputs],
        "moved": far,
    }
