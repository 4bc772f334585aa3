"""Record outputs of the whole product, to show that a change of the code changed none of them.

    python tools/golden.py record OUT_FOLDER     # run every item with the code of this checkout: some minutes
    python tools/golden.py compare A B           # what differs between two recordings of one machine

Numbers depend on the processor, so that recordings of two machines do not compare.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
import tempfile
import time
from itertools import islice
from pathlib import Path
from typing import Any

from golden_clean import Cleaner, differences
from golden_items import ITEMS, Item, keys_only
from golden_launch import SOURCE, Done, ended, fork, prepare, start, torchrun

SHOWN = 6
"""Differences of an item that are printed."""


def record(out: Path, only: list[str], workers: int) -> int:
    """Run all items, or those whose names begin so together with what they need; as many at a time as `workers`."""
    prepare()
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="golden-") as folder:
        work = Path(folder).resolve() / "work"
        work.mkdir()
        waiting = wanted(only)
        running: dict[int, tuple[Item, float]] = {}
        done: set[str] = set()
        began, failed = time.perf_counter(), 0
        while waiting or running:
            ready = next((item for item in waiting if done.issuperset(item.needs)), None)
            if ready is not None and len(running) < workers:
                waiting.remove(ready)
                running[fork(lambda item=ready: perform(item, work, out))] = ready, time.perf_counter()
                continue
            child, status = os.wait()
            item, started = running.pop(child)
            done.add(item.name)
            failed += status != 0
            print(f"{time.perf_counter() - started:6.1f} s  {item.name}{'  NOT RECORDED' * (status != 0)}", flush=True)
        print(f"{len(done)} items in {time.perf_counter() - began:.0f} s")
    return int(failed > 0)


def wanted(only: list[str]) -> list[Item]:
    """Items to run, in order."""
    by_name = {item.name: item for item in ITEMS}
    names = [item.name for item in ITEMS if not only or item.name.startswith(tuple(only))]
    for name in names:
        names += [need for need in by_name[name].needs if need not in names]
    return [item for item in ITEMS if item.name in names]


def perform(item: Item, work: Path, out: Path) -> None:
    """Run one item and write what it left to a file of its name."""
    logs = work.parent / item.name
    if callable(item.run):
        done = Done(0, json.dumps(item.run(work)), "")
    elif item.torchrun:
        done = torchrun(shlex.split(item.run), work)
    else:
        done = ended(start(shlex.split(item.run), work, logs, stdin=item.stdin, module=item.module), logs)
    if item.stdout_to is not None:
        (work / item.stdout_to).write_text(done.out)
    clean = Cleaner({str(work): "<work>", str(SOURCE.parent): "<checkout>"})
    found: dict[str, Any] = {"command": item.run if isinstance(item.run, str) else None, "exit": done.code}
    if done.code:
        found["error"] = clean.text((done.err.strip().splitlines() or [""])[-1])
    found["output"] = clean.output(done.out)
    if item.keys_only:
        found["output"] = keys_only(found["output"])
    found["files"] = {name: part for place in item.files for name, part in clean.folder(work / place, work).items()}
    (out / f"{item.name}.json").write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")


def compare(first: Path, second: Path) -> int:
    """Print item by item whether two recordings are equal; 1 if any is not."""
    recorded = [{path.stem: path for path in folder.glob("*.json")} for folder in (first, second)]
    names = sorted({*recorded[0], *recorded[1]})
    changed = 0
    for name in names:
        if not all(name in paths for paths in recorded):
            found = [f"only in {first if name in recorded[0] else second}"]
        else:
            one, other = (json.loads(paths[name].read_text()) for paths in recorded)
            found = list(islice(differences(one, other), 1000))
        changed += bool(found)
        print(f"different  {name}: {len(found)}" if found else f"equal      {name}")
        for line in found[:SHOWN]:
            print(f"             {line}")
    print(f"{len(names) - changed} of {len(names)} items are equal")
    return int(changed > 0 or not names)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    recording = commands.add_parser("record", help="run every item with the code of this checkout")
    recording.add_argument("out", type=Path)
    recording.add_argument("--only", nargs="*", default=[], help="names of items, or how they begin")
    recording.add_argument("--workers", type=int, default=2)
    comparing = commands.add_parser("compare", help="say what differs between two recordings")
    comparing.add_argument("first", type=Path)
    comparing.add_argument("second", type=Path)
    given = parser.parse_args()
    if given.command == "record":
        return record(given.out.resolve(), given.only, given.workers)
    return compare(given.first, given.second)


if __name__ == "__main__":
    sys.exit(main())
