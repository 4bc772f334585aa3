"""Readers of corpora, one per file; importing this package registers them all."""

from attnworks.text.readers import files, gettext, grammar, opus_books

__all__ = ["files", "gettext", "grammar", "opus_books"]
