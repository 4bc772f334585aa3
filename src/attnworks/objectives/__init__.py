"""Objectives: (model, Batch) -> Loss."""

from attnworks.objectives.contract import OBJECTIVES, Loss, Objective
from attnworks.objectives.seq2seq import Seq2Seq

__all__ = ["OBJECTIVES", "Loss", "Objective", "Seq2Seq"]
