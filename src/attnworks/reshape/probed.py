"""What the probes say about a language model before and after a change: which roles of heads are gone, and in words.

The heads of the new model are counted by the names that they had before, so that a head is gone if it was cut, or if it
does not have its role any more.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from attnworks.core.display import Progress, silent
from attnworks.core.errors import AttnworksError, printable
from attnworks.exam.lineage import HeadMap
from attnworks.exam.probes import run_probes
from attnworks.exam.probes.copy_losses import CopyLosses
from attnworks.exam.probes.texts import NEEDLES, SEQUENCES
from attnworks.traces.subject import Subject

ROLES = {
    "previous": "previous-token",
    "duplicate": "duplicate-token",
    "induction": "induction",
    "retrieval": "retrieval",
}
"""The roles of which a receipt tells how many heads are gone, in words."""
WORTH_TELLING = 0.25
"""Fewer heads may cross the threshold of a role by chance, where little was changed."""
LONGEST_HEAD_NUMBER = 6
STAGE, PROBE_SEQUENCES = "running probes", 2 * SEQUENCES + NEEDLES
"""The name of the stage in the progress, and how many sequences it runs at most."""


@dataclass(frozen=True, kw_only=True)
class ProbedModel:
    """What one model does on the texts of the probes (`attnworks.exam.probes`).

    heads          role -> the heads with that role, as this model numbers them
    first_loss     mean loss on random tokens; losses are None where they were not measured
    copy_loss      mean loss on the same tokens when they are repeated
    needle_loss    mean loss on a needle when it is copied
    """

    heads: dict[str, tuple[str, ...]]
    first_loss: float | None = None
    copy_loss: float | None = None
    needle_loss: float | None = None

    @property
    def copying(self) -> float | None:
        """By how much the loss is lower on tokens that are repeated."""
        return None if self.first_loss is None or self.copy_loss is None else self.first_loss - self.copy_loss


@dataclass(frozen=True, kw_only=True)
class LostRole:
    """How many heads had a role, and which of them are gone, by their names in the model before."""

    role: str
    had: int
    cut: tuple[str, ...]
    changed: tuple[str, ...]

    @property
    def lost(self) -> int:
        return len(self.cut) + len(self.changed)

    @property
    def words(self) -> str:
        """7 of 8 induction heads are gone."""
        return f"{self.counted} {'is' if self.lost == 1 else 'are'} gone"

    @property
    def counted(self) -> str:
        return f"{self.lost:,} of {self.had:,} {ROLES[self.role]} head{'s' * (self.had != 1)}"


@dataclass(frozen=True, kw_only=True)
class ProbedChange:
    """What a model does on the probes before a change, after it, and healed if it was."""

    before: ProbedModel
    after: ProbedModel
    healed: ProbedModel | None = None

    @property
    def last(self) -> ProbedModel:
        return self.after if self.healed is None else self.healed

    def lost(self, heads: Mapping[str, HeadMap]) -> list[LostRole]:
        """The roles of which heads are gone in the last model.

        heads    for every layer that lost or gained heads, which head became which
        """
        found: list[LostRole] = []
        for role in ROLES:
            had = self.before.heads.get(role, ())
            have = {_first_name(head, heads) for head in self.last.heads.get(role, ())}
            gone = [head for head in had if head not in have]
            cut = tuple(head for head in gone if _is_cut(head, heads))
            if gone:
                changed = tuple(head for head in gone if head not in cut)
                found.append(LostRole(role=role, had=len(had), cut=cut, changed=changed))
        return found

    def sentences(self, heads: Mapping[str, HeadMap]) -> Iterator[str]:
        """What was lost, in words: roles that lost a share of WORTH_TELLING, and the copying of text."""
        copies, said = self._copying(), False
        for lost in self.lost(heads):
            worse = lost.role == "induction" and copies is not None and copies[0]
            if lost.lost < WORTH_TELLING * lost.had and not worse:
                continue
            more = ""
            if lost.role == "induction" and copies is not None:
                more, said = f": the model {copies[1]}", True
            if lost.role == "retrieval" and self.before.needle_loss is not None and self.last.needle_loss is not None:
                more = f" (loss on a copied needle {self.before.needle_loss:.3g} -> {self.last.needle_loss:.3g})"
            yield f"{lost.words}{more}."
        if copies is not None and not said and copies[0]:
            yield f"The model {copies[1]}."

    def _copying(self) -> tuple[bool, str] | None:
        """Whether copying is harmed, and what is left of it in words; None if the model did not copy before."""
        before, last = self.before, self.last
        if before.first_loss is None or before.copy_loss is None or last.copying is None:
            return None
        copying = CopyLosses(before.first_loss, before.copy_loss, last.copying)
        if not copying.copies:
            return None
        how = "copies less well from its context" if copying.is_harmed else "still copies from its context"
        if copying.is_lost:
            how = "hardly copies from its context any more"
        numbers = f"loss on repeated tokens {before.copy_loss:.3g} -> {last.copy_loss:.3g}"
        return copying.is_harmed, f"{how} ({numbers})"

    def out_of_range(self) -> str | None:
        """The first loss that is no number, in words; None if there is none."""
        for step, found in vars(self).items():
            for name in ("first_loss", "copy_loss", "needle_loss") if found is not None else ():
                if math.isnan(getattr(found, name) or 0.0):
                    return f"probes.{step}.{name} nan"
        return None


class ProbeResult(NamedTuple):
    """What a model does on the probes, or why they failed; both are None for a model that they do not suit."""

    probes: ProbedModel | None = None
    failure: str | None = None


NOT_PROBED = ProbeResult()


def probe(subject: Subject, seed: int, tell: Progress = silent) -> ProbeResult:
    """The probes of a causal language model.

    They do not suit other models, nor one with few positions or tokens. A model's own code may fail on texts of their
    length; the reshape itself needs none of them, so that it does not fail with them.
    """
    if subject.abilities.kind != "decoder" or not subject.abilities.vocabulary:
        return NOT_PROBED
    done = 0

    def advance(sequences: int) -> None:
        nonlocal done
        done += sequences
        tell(STAGE, min(done, PROBE_SEQUENCES - 1), PROBE_SEQUENCES)

    tell(STAGE, 0, PROBE_SEQUENCES)
    try:
        found = run_probes(subject, seed=seed, advance=advance)
    except AttnworksError:
        return NOT_PROBED
    except (ArithmeticError, LookupError, RuntimeError, ValueError) as error:
        return ProbeResult(failure=f"{type(error).__name__}: {printable(' '.join(str(error).split()))}")
    heads = {role: tuple(map(str, heads)) for role, heads in found.roles().items()}
    return ProbeResult(
        ProbedModel(heads=heads, first_loss=found.first_loss, copy_loss=found.copy_loss, needle_loss=found.needle_loss)
    )


def probe_warnings(before: ProbeResult, *later: ProbeResult) -> tuple[str, ...]:
    """That the probes failed, so that the receipt cannot say which roles of heads are gone."""
    if before.failure is not None:
        return (
            f"The probes failed on the model before the change ({before.failure}), so that roles of heads and copying "
            "were not compared.",
        )
    failures = [result.failure for result in later if before.probes is not None and result.probes is None]
    why = f" ({failures[0]})" if failures and failures[0] is not None else ""
    if not failures:
        return ()
    return (f"The probes failed on the new model{why}: it may have lost roles of heads that the receipt cannot name.",)


def _first_name(head: str, heads: Mapping[str, HeadMap]) -> str | None:
    """The name of a head of the new model in the model before; None for a new head."""
    slot, _, number = head.rpartition(".")
    if slot not in heads or not number.isascii() or not number.isdigit() or len(number) > LONGEST_HEAD_NUMBER:
        return head
    after = heads[slot].after
    first = after[int(number)] if int(number) < len(after) else None
    return None if first is None else f"{slot}.{first}"


def _is_cut(head: str, heads: Mapping[str, HeadMap]) -> bool:
    """Whether a head of the model before is no head of the new model."""
    slot, _, number = head.rpartition(".")
    return slot in heads and number not in {str(kept) for kept in heads[slot].after if kept is not None}
