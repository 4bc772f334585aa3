"""Readers of corpora, one per file; importing this package registers them all."""

from attnworks.data.readers import books, catalogs, embedded, text, tsv
from attnworks.data.readers.contract import CORPORA, Bounds, Reader, Splits
from attnworks.data.readers.report import Report, Tally

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
