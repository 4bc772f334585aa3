"""Heads replaced by the nearest structured form."""
