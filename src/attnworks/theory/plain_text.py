"""Formulas for a terminal: LaTeX between dollar signs as Unicode."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from pylatexenc.latex2text import LatexNodes2Text, MacroTextSpec, get_default_latex_context_db

_LATEX_REWRITES = (
    (r"\\mathbf ?\{?1\}?", "𝟏"),
    (r"\^(\{\\top\}|\\top(?![a-zA-Z]))", "^T "),
    (r"\\(left|right|bigl|bigr|Bigl|Bigr|big|Big)(?![a-zA-Z])", ""),
    (r"\\ne(?![a-zA-Z])", r"\\neq"),
    (r"\\binom\{(\w+)\}\{(\w+)\}", r"C(\1, \2)"),
    (r"\\[,;:!]|\\q?quad(?![a-zA-Z])", " "),
    (r"\\operatorname\*?\{(\w+)\}|\\(ln|log|exp|sin|cos|tanh|max|min|arg|det|sup|inf|lim|Pr)(?![a-zA-Z])", r" \1\2 "),
)
"""Replacements before LaTeX becomes Unicode; they also put blanks between functions and their arguments."""

_TIDYING = ((r"\s*([=≤≥<>∈∉≈≠≪≫→←↦⇒⇔∝∼×·∘∪])\s*", r" \1 "), (r"(?<=[\w)]) (?=\()| (?=[)_^,.])", ""), (r"\s+", " "))


def unicode_formulas(text: str) -> str:
    r"""The text, with its LaTeX formulas written in Unicode.

    >>> unicode_formulas(r"$\lVert P\rVert_{1,\infty} \le \frac{4\beta}{\sqrt{d}}$ for all $P$")
    '‖P‖_{1,∞} ≤ 4β/√(d) for all P'
    """
    return re.sub(r"\$([^$]*)\$", lambda found: _formula(found[1]), text)


@cache
def _formula(latex: str) -> str:
    for pattern, short in _LATEX_REWRITES:
        latex = re.sub(pattern, short, latex)
    text = _reader().latex_to_text(latex)
    while "⟦" in text:
        text = re.sub(r"⟦([^⟦⟧]*)⟧(?=\s*[\w(‖|√∑⟦\[])", r"(\1) ", text)
        text = re.sub(r"⟦([^⟦⟧]*)⟧", r"\1", text)
    for pattern, short in _TIDYING:
        text = re.sub(pattern, short, text)
    return text.strip()


@cache
def _reader() -> LatexNodes2Text:
    known = get_default_latex_context_db()
    known.add_context_category("fractions", prepend=True, macros=[MacroTextSpec("frac", simplify_repl=_fraction)])
    return LatexNodes2Text(latex_context=known, math_mode="text", keep_braced_groups=True, keep_braced_groups_minlen=2)


def _fraction(node: Any, l2tobj: LatexNodes2Text) -> str:
    parts = (l2tobj.nodelist_to_text([part]) for part in node.nodeargd.argnlist)
    above, below = (part[1:-1] if part.startswith("{") else part for part in parts)
    whole = "/".join(f"({part})" if re.search(r"[-+−/ ·]|.√", part) else part for part in (above, below))
    return f"⟦{whole}⟧"
