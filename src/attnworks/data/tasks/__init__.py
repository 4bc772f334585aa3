"""Long sequences with one label each, drawn by us: what `attnworks experiment long-range` trains on.

>>> TASKS["recall"].batch(seed=0, step=3, size=2, length=32).tokens.shape
torch.Size([2, 32])
"""

from attnworks.data.tasks.contract import TASKS, Batch, Readout, Split, Task
from attnworks.data.tasks.listops import ListOps
from attnworks.data.tasks.recall import Recall
from attnworks.data.tasks.text import ByteText

__all__ = ["TASKS", "Batch", "ByteText", "ListOps", "Readout", "Recall", "Split", "Task"]
