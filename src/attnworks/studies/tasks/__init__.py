"""Generated long sequences with one label each, on which `attnworks experiment long-range` trains.

>>> TASKS["recall"].batch(seed=0, step=3, size=2, length=32).tokens.shape
torch.Size([2, 32])
"""

from attnworks.studies.tasks.byte_text import ByteText
from attnworks.studies.tasks.contract import TASKS, LongRangeTask, Readout, Split, TaskBatch
from attnworks.studies.tasks.listops import ListOps
from attnworks.studies.tasks.recall import Recall

__all__ = ["TASKS", "ByteText", "ListOps", "LongRangeTask", "Readout", "Recall", "Split", "TaskBatch"]
