"""Writing a target sentence token by token: greedy, beam search, sampling.

>>> import torch
>>> from attnworks import build, decoding
>>> from attnworks.models import RecurrentConfig
>>> model = build(RecurrentConfig(vocabulary=11, d_e=7, d_h=5, mechanism="luong-dot"))
>>> source = torch.tensor([[3, 4, 5, 6], [7, 8, 2, 0]])
>>> real = torch.tensor([[True, True, True, True], [True, True, True, False]])
>>> best = decoding.greedy(model, source, real, bos=1, eos=2, max_new_tokens=13)
>>> n_best = decoding.beam(model, source, real, bos=1, eos=2, max_new_tokens=13, beams=5, n_best=3)
>>> [hypothesis.score for hypothesis in n_best[0]] == sorted((h.score for h in n_best[0]), reverse=True)
True

Any model with `start` and `step` can write (`Writer`). A model in training mode is switched to evaluation while it
writes and back afterwards, part by part; results have no gradients.
"""

from attnworks.models.decoding.beam import (
    LENGTH_PENALTY,
    BeamObserver,
    BeamStep,
    Candidate,
    beam,
    best_reachable,
    length_penalty,
)
from attnworks.models.decoding.candidates import Hypothesis
from attnworks.models.decoding.sample import greedy, sample
from attnworks.models.stepping import Writer

__all__ = [
    "LENGTH_PENALTY",
    "BeamObserver",
    "BeamStep",
    "Candidate",
    "Hypothesis",
    "Writer",
    "beam",
    "best_reachable",
    "greedy",
    "length_penalty",
    "sample",
]
