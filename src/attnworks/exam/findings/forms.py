"""Findings about structured forms: heads that a fixed pattern explains."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from attnworks.exam.examination import ExamFinding
from attnworks.exam.findings.roles import CONTENT_ROLES, roles_of_heads
from attnworks.exam.findings.words import head_names, list_heads, percent_of, project_command, their, verb_for
from attnworks.exam.reading import HeadValue, ModelReadings

FORM_NAMES = {
    "identity": "diagonal",
    "offset": "shifted diagonal",
    "column": "one column",
    "columns": "blocks of columns",
    "band": "band",
    "permutation": "permutation",
}
"""Structured forms by their names on the page."""


def structured_heads(model: ModelReadings) -> Iterator[ExamFinding]:
    """How many heads have a structured form, and the head that its form explains best.

    Forms come from the examined text. A head whose role depends on content may show a form there and need it elsewhere.
    """
    labels, explained = model.labels("structure.form"), model.at("structure.explained")
    forms = {head: form for head, form in labels.items() if form in FORM_NAMES and head in explained}
    if not forms:
        return
    heads = [HeadValue(head, explained[head]) for head in sorted(forms, key=lambda head: -explained[head])]
    roles = roles_of_heads(model)
    bound = [head for head in heads if any(role in CONTENT_ROLES for role in roles.get(head.id, ()))]
    best, counts = next((head for head in heads if head not in bound), heads[0]), Counter(forms.values()).most_common()
    what = f"a structured form, which explains at least half of {their(heads)} attention"
    fixed = [head.id for head in heads if not (head.crosses or head in bound)]
    advice = ": try attnworks project" if fixed else ""
    if bound:
        advice += f"{', but' if advice else ': '} keep {list_heads(model, bound)}, where content decides"
    text = f"{len(heads)} of {len(labels)} heads {verb_for('has', heads)} {what}{advice} "
    text += f"({', '.join(f'{count} {FORM_NAMES[form]}' for form, count in counts)}; "
    text += f"{FORM_NAMES[forms[best.id]]} explains {percent_of(best.value)} of head {model.name_of(best)})"
    weight = 0.45 + 0.2 * len(heads) / len(labels)
    command = project_command(fixed) if fixed else ""
    yield ExamFinding(text, weight, ("structure.form", "structure.explained"), head_names(heads), command=command)
