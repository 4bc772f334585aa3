"""Formulas as a terminal shows them."""

from __future__ import annotations

import re

import pytest

from attnworks.theory import all_claims
from attnworks.theory.plain_text import unicode_formulas


@pytest.mark.parametrize(
    ("latex", "shown"),
    [
        (r"$\lVert P\rVert_{1,\infty} \le \frac{4\beta}{\sqrt{d}}$ for all $P$", "‖P‖_{1,∞} ≤ 4β/√(d) for all P"),
        (r"$\operatorname{softmax}(A+x\mathbf 1^\top)$", "softmax(A+x𝟏^T)"),
        (r"$\frac{n-1}{d_{qk}}$, $\frac{1}{2}e^{-\beta}$", "(n-1)/d_{qk}, (1/2) e^{-β}"),
        (r"$\left(\frac{a}{b}\right)^{3^L}$", "(a/b)^{3^L}"),
        (r"$\binom{L}{l} H^l$", "C(L, l) H^l"),
        (r"$\max_i X_{ij}$, $\cos\omega_k t$, $\tanh(D/4)$", "max_i X_{ij}, cos ω_k t, tanh(D/4)"),
        (r"$i \ne j$, $\tilde P \in \mathbb R^{k\times n}$", "i ≠ j, P̃ ∈ ℝ^{k × n}"),
        (r"$\lVert\operatorname{res}X\rVert \le x^\top y$", "‖res X‖ ≤ x^T y"),
        ("no formula: 5_6", "no formula: 5_6"),
    ],
)
def test_shown(latex: str, shown: str) -> None:
    assert unicode_formulas(latex) == shown


def test_no_symbol_is_lost() -> None:
    """A name that the reader does not know would vanish without a word."""
    silent = {"mathrm", "mathbf", "mathbb", "mathcal", "text", "operatorname", "left", "right", "hat", "bar", "tilde"}
    silent |= {"quad", "qquad", "bigl", "bigr", "Bigl", "Bigr", "big", "Big", "binom", "frac", "widehat", "widetilde"}
    texts = (text for one in all_claims() for text in (one.statement, one.correction, one.note, one.proof))
    formulas = (formula for text in texts for formula in re.findall(r"\$([^$]*)\$", text))
    names = {name for formula in formulas for name in re.findall(r"\\([a-zA-Z]+)", formula)} - silent
    assert names
    for name in names:
        assert unicode_formulas(f"$\\{name}{{x}}$") != "x", name
