"""Readers of corpora, one per file; importing this package registers them all."""

from attnworks.text.readers import files, gettext, grammar, opus_books, tsv
from attnworks.text.readers.contract import CORPORA, Bounds, Reader, Splits
from attnworks.text.report import Report, Tally

__all__ = [
    "CORPORA",
    "Bounds",
    "Reader",
    "Report",
    "Splits",
    "Tally",
    "books",
    "catalogs",
    "embedded",
    "text",
    "tsv",
]
