"""Traces to readings, folded over a corpus; one measure, one file."""
