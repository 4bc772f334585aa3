"""Hugging Face models: opening, anatomy, observed passes, changed heads and mechanisms, folders.

After this import, transformers opens and saves reshaped models too (`hf/registration.py`).
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from attnworks.hf.registration import register_reshaped

register_reshaped()


@contextmanager
def quiet() -> Iterator[None]:
    """Silence the progress bars and warnings of transformers. attnworks checks what they are about itself."""
    import huggingface_hub.utils as hub
    import transformers

    logs = (transformers.utils.logging, hub.logging)
    levels = [log.get_verbosity() for log in logs]
    bars, hub_bars = logs[0].is_progress_bar_enabled(), not hub.are_progress_bars_disabled()
    try:
        for log in logs:
            log.set_verbosity(logging.CRITICAL)
        logs[0].disable_progress_bar()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for log, level in zip(logs, levels, strict=True):
            log.set_verbosity(level)
        if bars:
            logs[0].enable_progress_bar()
        (hub.enable_progress_bars if hub_bars else hub.disable_progress_bars)()
