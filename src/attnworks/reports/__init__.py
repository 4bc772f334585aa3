"""Readings and traces made visible."""
