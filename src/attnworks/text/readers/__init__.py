"""Readers of corpora from files, from the Hugging Face Hub and from Python itself; importing this registers them."""

from attnworks.text.readers import files, gettext, opus_books, pydoc

__all__ = ["files", "gettext", "opus_books", "pydoc"]
