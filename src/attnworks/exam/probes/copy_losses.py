"""How well a model copies from its context, and what a change leaves of it, by the losses of the probes."""

from __future__ import annotations

from typing import NamedTuple

MIN_SAVED_SHARE = 0.1
"""A model copies if its loss on random tokens falls by this share or more when they are repeated."""
HARDLY, WELL = 1 / 3, 0.9
"""A changed model hardly copies, or copies as well as before, if it keeps this share of what copying saved."""


class CopyLosses(NamedTuple):
    """What a model saves by copying, and what a changed model saves.

    first_loss      mean loss on random tokens
    copy_loss       mean loss on the same tokens when they are repeated
    changed_saved   first_loss - copy_loss of the changed model
    """

    first_loss: float
    copy_loss: float
    changed_saved: float

    @property
    def saved(self) -> float:
        return self.first_loss - self.copy_loss

    @property
    def copies(self) -> bool:
        """Whether the model copied before the change. A model with random weights saves a little by accident."""
        return self.saved >= MIN_SAVED_SHARE * self.first_loss > 0

    @property
    def kept(self) -> float:
        """The share of what copying saved that the changed model saves."""
        return self.changed_saved / self.saved

    @property
    def is_harmed(self) -> bool:
        return self.copies and self.kept < WELL

    @property
    def is_lost(self) -> bool:
        return self.copies and self.kept < HARDLY
