"""`attnworks experiment`: the documented studies, and pictures of the theory."""

from __future__ import annotations

import click

from attnworks.cli import experiment_studies as studies
from attnworks.cli import experiment_theory as theory
from attnworks.cli.options import SuggestingGroup


@click.group(cls=SuggestingGroup)
def experiment() -> None:
    """Run a documented study from start to end.

    \b
    Examples:
      attnworks experiment conti --out runs/conti
      attnworks experiment conti --models all --pairs 5000 --epochs 5 --out runs/six
      attnworks experiment long-range --out runs/lra
      attnworks experiment structure --out runs/structure
      attnworks experiment growth --out runs/growth
      attnworks experiment collapse                       # pictures of the theory, in seconds
      attnworks experiment two-keys --out runs/two-keys   # with a figure
    """


for command in (
    theory.collapse, theory.paths, theory.two_keys, theory.projection, theory.gradient, theory.context,
    studies.conti, studies.long_range, studies.structure, studies.growth,
):  # fmt: skip
    experiment.add_command(command)
