"""Mechanisms tried, advised and swapped."""
