"""Do to another model what was done to this one."""

from __future__ import annotations

import tempfile
from pathlib import Path

from attnworks.core.errors import FolderError, UsageError
from attnworks.core.json_records import parse
from attnworks.core.notation import DTYPES
from attnworks.core.progress import Watch, silently
from attnworks.core.registry import unknown_name
from attnworks.reshape.contract import RESHAPES
from attnworks.reshape.history import Place, check_history, check_new, receipts_of, write_outcome
from attnworks.reshape.receipt import Receipt
from attnworks.reshape.run import Care, carry_out
from attnworks.reshape.texts import found_again
from attnworks.traces.subject import open_examinee


def replay(history: str, on: str, out: Path, *, watch: Watch = silently) -> list[tuple[Receipt, Receipt]]:
    """Every reshape in the history of a folder, done to the model `on` in turn; what was then, and what is now."""
    check_new(out)
    past = receipts_of(history)
    if not past:
        raise FolderError(
            asked=f"replay the history of {history}",
            expected="a model that was reshaped",
            got="no history",
            remedy="choose a folder that attnworks reshape wrote",
        )
    check_history(Place.of(on))
    pairs: list[tuple[Receipt, Receipt]] = []
    with tempfile.TemporaryDirectory(dir=out.absolute().parent if out.parent.is_dir() else None) as scratch:
        source = on
        for number, receipt in enumerate(past):
            place = out if number == len(past) - 1 else Path(scratch) / str(number)
            pairs.append((receipt, repeat(receipt, source, place, watch=watch)))
            source = str(place)
    return pairs


def repeat(receipt: Receipt, on: str, out: Path, *, watch: Watch = silently) -> Receipt:
    """One reshape again, on another model."""
    reshape, healing = parse(RESHAPES[receipt.reshape], receipt.asked, "asked").again(receipt.done), receipt.healing
    texts = found_again(receipt.text)
    care = Care(receipt.objective, healing.steps, healing.rate, healing.tokens, healing.seed, healing.by)
    dtype, device = receipt.numbers
    if dtype not in DTYPES:
        raise unknown_name("type of numbers", dtype, DTYPES)
    examinee = open_examinee(on, dtype=dtype, device=device)
    try:
        model, new = carry_out(reshape, examinee, texts, care, watch)
    except UsageError as error:
        raise UsageError(
            asked=f"{receipt.reshape} on {on} what was done before",
            expected="a model like that one",
            got=str(error),
            remedy="choose another --on",
        ) from error
    write_outcome(model, new, Place.of(on), out)
    return new
