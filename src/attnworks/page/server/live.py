"""A model that answers what the page asks."""

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
from attnworks.exam.examiner import Request
from attnworks.exam.run import run_examination
from attnworks.hf.subject import ForeignSubject
from attnworks.models.modes import evaluating
from attnworks.page.blobs import rounded
from attnworks.page.contents import Contents, Exam, exam_contents, label_of, page_contents
from attnworks.page.sentences import Coded
from attnworks.page.server.edits import ChangedModels
from attnworks.page.server.inspect import Looked, Read, Said, as_written, has_scores, look, moved, read_sentence, say
from attnworks.page.server.questions import Changes, Question
from attnworks.page.server.queue import Recent
from attnworks.reshape.receipt import Receipt
from attnworks.text.passages import Passage, from_texts
from attnworks.text.readers.grammar import grammar_passages
from attnworks.traces.subject import Examinee

REMEMBERED = 8
"""Sentences for which it is known what the untouched model says."""
UNCHANGED = Changes()
TOO_SHORT = "too short for all but a few measures, which need two tokens of text"


@dataclass(frozen=True, eq=False)
class Heard:
    """What the untouched model said."""

    read: Read
    said: Said
    hidden: Tensor


class LiveModel:
    """A model, as it is and with changes. To be asked by one thread at a time.

    longest    most tokens of a sentence
    text       the sentence that is shown first
    receipts   of the reshapes that made the model, first to last
    """

    def __init__(
        self, examinee: Examinee, *, longest: int = 128, text: str | None = None, receipts: Sequence[Receipt] = ()
    ) -> None:
        self.receipts = receipts
        self.base, self.models = examinee, ChangedModels(examinee)
        positions = examinee.source.longest
        self.longest = longest if positions is None else min(longest, positions)
        self._counting = copy.copy(examinee.source)
        self._counting.longest = None
        self.text = self._beginning(first_sentence(examinee)) if text is None else text
        self._heard: Recent[str, Heard] = Recent(REMEMBERED)
        self._reads: Recent[tuple[str, Changes], Read] = Recent(REMEMBERED)
        self.first = self._first()

    def page(self) -> Contents:
        """The page with an examination of the first sentence."""
        possible = self.models.possible
        live = {
            "tokens": self.longest,
            "kind": self.base.subject.abilities.kind,
            "reshape": possible.reshape,
            "forms": {slot: list(forms) for slot, forms in possible.forms.items()},
            "mechanisms": {slot: list(specs) for slot, specs in possible.mechanisms.items()},
            "text": self.text,
        }
        return page_contents([self.first], host="live", receipts=self.receipts, live=live, largest=math.inf)

    def look(self, question: Question) -> dict[str, Any]:
        """The sentence with its maps, what is cheap to measure, and what the model says before and after."""
        began = time.perf_counter()
        passage = self._passage(question.text)
        heard, looked = self._look(passage, question.changes)
        pin, blobs = Coded(looked.sentence, looked.exam, "live").contents()
        shown = Exam(looked.exam, self.first.label, (looked.sentence,))
        return self._answer(exam_contents(shown, [pin]), heard, blobs, began)

    def examine(self, question: Question) -> dict[str, Any]:
        """The default readings of the sentence; of a very short one, those of a look."""
        began = time.perf_counter()
        passage = self._passage(question.text)
        if self._read(passage, question.changes).is_short:
            answer = self.look(question)
            return {**answer, "exam": {**answer["exam"], "notes": [TOO_SHORT]}}
        exam = self._examined(passage, question.changes)
        return self._answer(exam_contents(Exam(exam, self.first.label), []), None, {}, began)

    def _look(self, passage: Passage, changes: Changes) -> tuple[dict[str, Any], Looked]:
        base = self._hear(passage) if changes else None
        examinee = self.models.examinee(changes)
        read = base.read if base is not None and base.read.written is None else self._read(passage, changes)
        looked = look(examinee, read, self._about(examinee))
        said = say(examinee, read, looked.outputs)
        if base is None:
            self._heard.put(passage.source.text, Heard(read, said, looked.outputs.hidden))
            return _outputs(said, said, 0.0), looked
        after = looked.outputs.hidden
        if read is not base.read:
            with evaluating(examinee.subject.model):
                after = examinee.subject.run(base.read.batch(examinee.subject)).hidden
        return _outputs(base.said, said, moved(base.hidden, after)), looked

    def _hear(self, passage: Passage) -> Heard:
        """What the untouched model says, from memory if it was asked before."""
        return self._heard.get(passage.source.text, lambda: self._listen(passage))

    def _listen(self, passage: Passage) -> Heard:
        subject, read = self.base.subject, self._read(passage)
        with evaluating(subject.model):
            outputs = subject.run(read.batch(subject), scores=has_scores(subject))
            return Heard(read, say(self.base, read, outputs), outputs.hidden)

    def _read(self, passage: Passage, changes: Changes = UNCHANGED) -> Read:
        """The sentence as the model with these changes reads it, and writes the other side."""
        key = passage.source.text, changes
        return self._reads.get(key, lambda: read_sentence(self.models.examinee(changes), passage))

    def _about(self, examinee: Examinee) -> dict[str, Any]:
        """What is said about a model with changes."""
        return {**self.first.exam.model, "parameters": sum(p.numel() for p in examinee.subject.model.parameters())}

    def _examined(self, passage: Passage, changes: Changes = UNCHANGED) -> Examination:
        """The default readings of a sentence, without role labels, for which one sentence is too few.

        Notes about missing syntax or repeated tokens are removed.
        """
        examinee, read = self.models.examinee(changes), self._read(passage, changes)
        about = {"name": "this sentence"}
        exam = run_examination(as_written(examinee, read), [passage], Request(), about=about, receipts=self.receipts)
        return replace(exam, notes=tuple(note for note in exam.notes if not note.startswith("roles.")))

    def _passage(self, text: str) -> Passage:
        if not _is_text(text):
            raise UsageError(
                asked="the sentence",
                expected="text in UTF-8",
                got="bytes that are none",
                remedy="type it in a terminal that writes UTF-8",
            )
        ((passage,), _) = from_texts([" ".join(text.split())])
        count = self._count(passage)
        if count > self.longest:
            raise UsageError(
                asked="the sentence",
                expected=f"at most {self.longest:,} tokens",
                got=f"{count:,}",
                remedy="shorten it, or serve with a larger --max-tokens if the model has the positions",
            )
        return passage

    def _count(self, passage: Passage) -> int:
        """Tokens, also of what is longer than the model reads."""
        return len(self._counting.read(passage.source))

    def _beginning(self, text: str) -> str:
        """As many words of it as the model may be shown, but one at least."""
        words = text.split()
        while len(words) > 1 and self._count(from_texts([" ".join(words)])[0][0]) > self.longest:
            words.pop()
        return " ".join(words)

    def _first(self) -> Exam:
        passage = self._passage(self.text)
        exam = self._examined(passage)
        looked = look(self.base, self._read(passage), exam.model)
        return Exam(exam, label_of(exam), (looked.sentence,))

    def _answer(
        self, exam: Mapping[str, Any], outputs: dict[str, Any] | None, blobs: Mapping[str, str], began: float
    ) -> dict[str, Any]:
        seconds = time.perf_counter() - began
        return {"exam": exam, "outputs": rounded(outputs), "blobs": blobs, "seconds": rounded(seconds)}


def first_sentence(examinee: Examinee) -> str:
    """With a hidden word, where the model would say which; for a model of ours from the embedded corpus."""
    subject = examinee.subject
    if not isinstance(subject, ForeignSubject):
        return grammar_passages(1)[0].source.text
    able = subject.abilities
    if able.kind == "encoder" and able.vocabulary and able.mask_id is not None:
        return f"The capital of France is {examinee.spell[0](able.mask_id)} ."
    return "The animal did not cross the street because it was too tired ."


def _is_text(text: str) -> bool:
    """Arguments of a command that are not UTF-8 reach us as halves of letters."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _outputs(before: Said, after: Said, far: float) -> dict[str, Any]:
    return {
        "words": after.words,
        "before": [output._asdict() for output in before.outputs],
        "after": [output._asdict() for output in after.outputs],
        "moved": far,
    }
