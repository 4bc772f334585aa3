"""Scalars for TensorBoard beside metrics.jsonl, where the package tensorboard is installed."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from attnworks.training.events import KINDS, Event, Saved, Validated

TENSORBOARD_FOLDER = "tensorboard"
SCALARS = ("loss", "learning_rate", "gradient_norm", "perplexity", "bleu", "chrf")


class TensorBoard:
    """A watcher that writes the numbers of every event as scalars: training/loss, validation/bleu and so on.

    Scalars of steps after `after`, which will be repeated, are hidden.
    """

    def __init__(self, run: Path, after: int) -> None:
        from torch.utils.tensorboard import SummaryWriter  # pyright: ignore[reportPrivateImportUsage]

        self.writer: Any = SummaryWriter(str(run / TENSORBOARD_FOLDER), purge_step=after + 1 if after else None)

    @classmethod
    def where_installed(cls, run: Path, after: int) -> TensorBoard | None:
        return cls(run, after) if find_spec("tensorboard") is not None else None

    def __call__(self, event: Event) -> None:
        if type(event) not in KINDS:
            return
        kind = KINDS[type(event)]
        for name in SCALARS:
            value = getattr(event, name, None)
            if value is not None:
                self.writer.add_scalar(f"{kind}/{name}", value, event.step)
        if isinstance(event, Validated | Saved):
            self.writer.flush()

    def close(self) -> None:
        self.writer.close()
