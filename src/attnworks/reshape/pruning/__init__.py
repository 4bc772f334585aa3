"""Heads ranked, cut and measured."""
