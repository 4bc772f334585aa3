"""What a beam search tells those who watch it: enough to draw the tree it searched."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Candidate:
    """One token more on a hypothesis.

    parent    place of that hypothesis in `kept` of the step before; 0, the empty hypothesis, in the first step
    logprob   of the whole hypothesis with this token
    """

    parent: int
    token: int
    logprob: float


@dataclass(frozen=True)
class BeamStep:
    """One step of the search for one sentence.

    step    how many tokens the candidates have, from 1
    kept    hypotheses that continue, the most probable first
    ended   hypotheses that wrote eos in this step, the most probable first
    """

    sentence: int
    step: int
    kept: tuple[Candidate, ...]
    ended: tuple[Candidate, ...]


BeamObserver = Callable[[BeamStep], object]
