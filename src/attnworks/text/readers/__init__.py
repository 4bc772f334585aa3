"""Readers of corpora from files and from the Hugging Face Hub; importing this package registers them."""

from attnworks.text.readers import files, gettext, opus_books

__all__ = ["files", "gettext", "opus_books"]
