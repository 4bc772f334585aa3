"""The page and the picture of bench/attention.py, from its JSON, also from that of a run that did not reach its end."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from attention_pairs import OURS, STEP, STEPS_PER_RUN

from attnworks.attention.benchmark.versus_dense import BOTH, FLOPS_IN_FORWARD_PASSES, FORWARD
from attnworks.core.plotting import draw_times
from attnworks.core.timing import Race

ROOF = "matrix product"
YARDSTICK = "dense (SDPA)"
HEADINGS = {
    "default": "With the default malloc",
    "warm": "With a malloc that keeps its pages",
}


def write_report(results: dict[str, Any], out: Path) -> None:
    (out / "bench_attention.md").write_text(page(results))
    panels = dict(_panels(results))
    if panels:
        draw_times(panels, out / "bench_attention.svg", baseline=YARDSTICK, bold=OURS)


def page(results: dict[str, Any]) -> str:
    settings = results["settings"]
    when = f", {settings['when']}" if settings["when"] else ""
    parts = [
        "# Attention compared with other libraries",
        "Written by `bench/attention.py`. One sequence, 8 heads of width 64, float32, projections left out; "
        f"{settings['threads']} threads of {results['cores']} cores, torch {settings['torch']}{when}. All programs "
        f"take turns, and times are medians of {settings['rounds']} rounds. Where a cell has two numbers, the first is "
        "the forward pass and the second is the forward and backward pass together.",
        '- The column "ours" is the median over the rounds of the time of the other program divided by the time of '
        "attnworks. Above 1 attnworks is faster.\n"
        '- The column "share" is the speed as a share of the speed of a large matrix product in the same rounds. Speed '
        "is FLOPs over time; with the backward pass three times the FLOPs are counted.\n"
        f"- A program that takes longer than {settings['limit']:g} s, or does not fit into memory, is not timed.",
        "![Time against length](bench_attention.svg)",
    ]
    for allocator, heading in ((name, HEADINGS[name]) for name in results["times"]):
        parts += [f"## {heading}", _times(results, allocator), _steps(results, allocator)]
    if results["memory"]:
        parts += ["## Peak memory above the inputs, MB", _memory(results)]
    parts += ["## What was compared", _remarks(results)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _attending(results: dict[str, Any]) -> Iterator[dict[str, Any]]:
    return (one for one in results["contestants"] if STEP not in one["passes"])


def _times(results: dict[str, Any], allocator: str) -> str:
    rows = ["| function | by | n | ms | ours | share |", "|---|---|---|---|---|---|"]
    for n in map(str, results["settings"]["lengths"]):
        race = Race(results["times"][allocator][n])
        for one in _attending(results):
            cells = [one["function"], one["name"], f"{int(n):,}"]
            if one["absent"]:
                rows.append(_line(*cells, one["absent"], "", ""))
                continue
            ours = f"{one['function']} / {OURS}"
            times, ratios, shares = [], [], []
            for chosen in (FORWARD, BOTH):
                mine, rival = f"{one['key']} / {chosen}", f"{ours} / {chosen}"
                if mine not in race.seconds:
                    times.append(_why(results, one, chosen, n))
                    continue
                times.append(_number(1e3 * race.median(mine)))
                if rival in race.seconds and one["name"] != OURS:
                    ratios.append(f"x{race.speedup(rival, over=mine):.2f}")
                if flops := (results["flops"][one["function"]] or {}).get(n):
                    part = (
                        race.speedup(mine, over=ROOF) * FLOPS_IN_FORWARD_PASSES[chosen] * flops / results["roof_flops"]
                    )
                    shares.append(f"{part:.0%}")
            rows.append(_line(*cells, " / ".join(times), " / ".join(ratios), " / ".join(shares)))
    return "\n".join(rows)


def _steps(results: dict[str, Any], allocator: str) -> str:
    rows = ["| one step, after n positions | n | microseconds | ours |", "|---|---|---|---|"]
    steppers = [one for one in results["contestants"] if STEP in one["passes"]]
    for n in map(str, results["settings"]["lengths"]):
        race = Race(results["times"][allocator][n])
        for one in steppers:
            mine, ours = f"{one['key']} / {STEP}", f"{one['function']} / {OURS} / {STEP}"
            if mine not in race.seconds:
                told = one["absent"] or _why(results, one, STEP, n)
                rows.append(_line(one["name"], f"{int(n):,}", told, ""))
                continue
            both = ours in race.seconds and mine != ours
            ratio = f"x{race.speedup(ours, over=mine):.2f}" if both else ""
            rows.append(_line(one["name"], f"{int(n):,}", f"{1e6 * race.median(mine) / STEPS_PER_RUN:.0f}", ratio))
    return "\n".join(rows) if steppers else ""


def _memory(results: dict[str, Any]) -> str:
    lengths = results["settings"]["lengths"]
    rows = [_line("function", "by", *(f"{n:,}" for n in lengths)), "|---" * (2 + len(lengths)) + "|"]
    for one in _attending(results):
        if one["absent"]:
            continue
        found = results["memory"][one["key"]]
        cells = []
        for n in lengths:
            peaks = [found.get(f"{chosen}@{n}", "none") for chosen in (FORWARD, BOTH)]
            cells.append(" / ".join(peak if isinstance(peak, str) else f"{peak[1] / 1e6:.0f}" for peak in peaks))
        rows.append(_line(one["function"], one["name"], *cells))
    return "\n".join(rows)


def _remarks(results: dict[str, Any]) -> str:
    lines = [
        f"- {one['function']}, {one['name']}: {one['check']}"
        + (f" ({one['remark']})" if one["remark"] and one["remark"] != one["check"] else "")
        for one in results["contestants"]
    ]
    told = (
        "Before timing, the outputs of each program at n = 1,024 are compared with those of a reference, and its "
        "gradients where it has a backward pass; with one step at a time, its first outputs. A program that computes "
        "another function is not checked: its line says what it computes instead."
    )
    return told + "\n\n" + "\n".join(lines)


def _why(results: dict[str, Any], one: dict[str, Any], chosen: str, n: str) -> str:
    told = results["memory"].get(one["key"], {}).get(f"{chosen}@{n}", "none")
    return told if isinstance(told, str) else "none"


def _panels(results: dict[str, Any]) -> Iterator[tuple[str, dict[str, dict[int, float]]]]:
    """Time of forward and backward by function, beside dense attention."""
    races = {int(n): Race(seconds) for n, seconds in results["times"].get("default", {}).items()}

    def curve(key: str) -> dict[int, float]:
        cell = f"{key} / {BOTH}"
        return {n: race.median(cell) for n, race in races.items() if cell in race.seconds}

    functions: dict[str, list[dict[str, Any]]] = {}
    for one in _attending(results):
        if not one["absent"] and not one["function"].startswith("dense"):
            functions.setdefault(one["function"], []).append(one)
    for function, ones in functions.items():
        dense = curve(f"{'dense, causal' if 'causal' in function else 'dense'} / torch SDPA")
        drawn = {one["name"]: curve(one["key"]) for one in ones} | {YARDSTICK: dense}
        yield f"{function}\nforward and backward", {name: points for name, points in drawn.items() if points}


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _line(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"
