"""Examinations: measures run on a model and a text, their readings, findings, folders and comparisons."""
