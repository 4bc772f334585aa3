"""Norms, residuals, bounds and spectra that measures compute."""
