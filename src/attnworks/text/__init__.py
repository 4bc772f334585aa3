"""Text: passages, corpora and their readers, vocabularies and tokenizers, rows of tokens and batches."""
