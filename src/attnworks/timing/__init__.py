"""Timing that survives a noisy machine: candidates take turns, and only ratios inside one round are compared."""

from attnworks.timing.interleaved import Race, interleave

__all__ = ["Race", "interleave"]
