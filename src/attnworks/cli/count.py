"""`attnworks count`: parameters by part, of presets, published models, configs and folders."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from attnworks.cli.console import console, print_json

if TYPE_CHECKING:
    from attnworks.models.config import ModelConfig


@click.command()
@click.argument("name", required=False, metavar="[NAME|CONFIG]")
@click.option("--vocabulary", type=click.IntRange(1), help="Token kinds of a preset, instead of 37,000.")
@click.option("--mechanism", metavar="SPEC", help="Count a mechanism, like bigbird or window:window=64, against dense.")
@click.option("--compare", is_flag=True, help="Compare every mechanism and a recurrent layer: growth, paths, numbers.")
@click.option("--n", type=click.IntRange(1), help="Positions of the sequence.  [default: 4096]")
@click.option("--heads", type=click.IntRange(1), help="Number of heads.  [default: 8]")
@click.option("--width", type=click.IntRange(1), help="Width of keys and values in a head.  [default: 64]")
@click.option("--causal", is_flag=True, help="With --mechanism: hide later positions from each position.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
def count(
    name: str | None,
    vocabulary: int | None,
    mechanism: str | None,
    compare: bool,
    n: int | None,
    heads: int | None,
    width: int | None,
    causal: bool,
    as_json: bool,
) -> None:
    """Count parameters, part by part, without allocating any; or what attention costs.

    NAME is a preset (base, tiny, conti-8h, ...) or a published model (gpt-3, bert-large, ...); CONFIG is a model folder
    or a JSON config. With neither, the published models of Conti 2024, table 1: what was stated and what we count.

    \b
    Examples:
      attnworks count
      attnworks count gpt-3
      attnworks count conti-8h --vocabulary 8000
      attnworks count runs/mine --json
      attnworks count --mechanism bigbird --n 65536   # edges, FLOPs and bytes against dense
      attnworks count --compare --n 4096              # every mechanism and a recurrent layer
    """
    given = {
        "NAME": name,
        "--vocabulary": vocabulary,
        "--mechanism": mechanism,
        "--compare": compare or None,
        "--n": n,
        "--heads": heads,
        "--width": width,
        "--causal": causal or None,
    }
    _refuse_strangers([word for word, value in given.items() if value is not None])
    if mechanism is not None or compare:
        from attnworks.cli.count_attention import check_positions, show_all, show_one

        check_positions(n or 1)
        size = (n or 4096, heads or 8, width or 64)
        if mechanism is not None:
            show_one(mechanism, *size, causal, as_json)
        else:
            show_all(*size, as_json)
    elif name is None:
        _published_table(as_json)
    else:
        _parts_table(name, _count(name, vocabulary), as_json)


_GOES_WITH = {
    "--vocabulary": ("NAME",),
    "--n": ("--mechanism", "--compare"),
    "--heads": ("--mechanism", "--compare"),
    "--width": ("--mechanism", "--compare"),
    "--causal": ("--mechanism",),
}


def _refuse_strangers(given: list[str]) -> None:
    """One thing is counted at a time, and an option that has nothing to do with it would be overlooked in silence."""
    from attnworks.core.errors import UsageError

    counted = [word for word in given if word in {"NAME", "--mechanism", "--compare"}]
    if len(counted) > 1:
        raise UsageError("count", "NAME, --mechanism or --compare", " and ".join(counted), "count one at a time")
    for option in given:
        if option in _GOES_WITH and not set(counted) & set(_GOES_WITH[option]):
            raise UsageError(
                f"count {option}", f"{' or '.join(_GOES_WITH[option])}", counted[0] if counted else "none", "add it"
            )


def _count(name: str, vocabulary: int | None) -> dict[str, int]:
    from attnworks.core.errors import UsageError
    from attnworks.models.config import PureConfig
    from attnworks.models.counting import PUBLISHED, count_parameters

    config = None if name in PUBLISHED else _find_config(name)
    if vocabulary is not None:
        if config is None or isinstance(config, PureConfig):
            raise UsageError(
                f"--vocabulary {vocabulary}",
                "a preset, config or folder of a model of tokens",
                "a published model" if config is None else "a pure attention network, which works on vectors",
                "leave --vocabulary out",
            )
        config = config.with_vocabulary(vocabulary)
    return PUBLISHED[name].blueprint.count_parameters() if config is None else count_parameters(config)


def _find_config(name: str) -> ModelConfig:
    from attnworks.core.errors import FolderError
    from attnworks.core.folders import best_checkpoint
    from attnworks.core.registry import unknown_name
    from attnworks.models.build import PRESETS
    from attnworks.models.counting import PUBLISHED
    from attnworks.models.folder import CONFIG_FILE, read_config_file

    if name in PRESETS:
        return PRESETS[name]
    path = Path(name)
    if path.is_dir():
        path = (best_checkpoint(path) or path) / CONFIG_FILE
        if not path.is_file():
            raise FolderError(
                f"count {name}", f"a folder with {CONFIG_FILE} or checkpoints", "another folder", "check the path"
            )
    if path.is_file():
        return read_config_file(path)
    raise unknown_name("model to count", name, [*PRESETS, *PUBLISHED, "a folder", "a config.json"])


def _parts_table(name: str, parts: dict[str, int], as_json: bool) -> None:
    total = sum(parts.values())
    if as_json:
        print_json({"model": name, "parameters": total, "parts": parts})
        return
    from rich.box import SIMPLE_HEAD
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD)
    table.add_column("part")
    table.add_column("parameters", justify="right")
    table.add_column("share", justify="right")
    table.add_column("")
    for part, number in parts.items():
        table.add_row(part, f"{number:,}", f"{number / total:.1%}", f"[cyan]{'█' * round(30 * number / total)}")
    console().print(f"[bold]{escape(name)}[/]: {total:,} parameters ({readable(4 * total)} in float32)", table)


def _published_table(as_json: bool) -> None:
    from attnworks.models.counting import PUBLISHED

    counted = {key: sum(model.blueprint.count_parameters().values()) for key, model in PUBLISHED.items()}
    if as_json:
        rows = {
            key: {"date": model.date, "stated": model.stated, "counted": counted[key], "claim": model.claim}
            for key, model in PUBLISHED.items()
        }
        print_json(rows)
        return
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD)
    for heading in ("name", "model", "date"):
        table.add_column(heading)
    for heading in ("stated", "counted", "difference"):
        table.add_column(heading, justify="right")
    for key, model in PUBLISHED.items():
        off = counted[key] / model.stated - 1
        table.add_row(key, model.title, model.date, f"{model.stated:,}", f"{counted[key]:,}", f"{off:+.2%}")
    console().print("[bold]Published models[/], stated and counted (Conti 2024, table 1)", table)


def readable(size: float) -> str:
    """A number of bytes for people."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} TB"
