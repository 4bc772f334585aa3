"""Attacks on everything that attnworks reads: mutants of files, forgeries, special files, kills; counted in a table.

    python -m tests.faults.campaign --seed 0 --minutes 20
    python -m tests.faults.campaign --seed 0 --of gguf,torch,shards --mutants 20000

A mutant is a file with other bytes, JSON with another value, or a file of weights with another header. A forgery is
JSON with another value whose hashes were all made right again. A special file is a pipe, a device, a socket, a folder
or a link where a file should be. Reading must neither execute anything nor take much memory.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import shutil
import signal
import socket
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from attnworks.core.errors import AttnworksError
from tests.faults.formats import damage_header
from tests.faults.kills import Saves, kill_saves, kill_training, without_waiting
from tests.faults.material import MATERIALS, NOT_HASHED, Material, digest, materials
from tests.faults.mutants import MUTATIONS, canonical, edit, sha256

SECONDS = 60.0
"""After which reading counts as hung."""
LONGEST_MESSAGE = 2000
MEGABYTES = 256
"""That reading may take more than any reading before."""
OUTCOMES = ("refused", "no effect", "silent change", "accepted", "traceback", "hang", "executed", "memory")
BAD = ("silent change", "traceback", "hang", "executed", "memory")
EVENTS = (
    "os.system",
    "os.exec",
    "os.posix_spawn",
    "os.fork",
    "subprocess.Popen",
    "pickle.find_class",
    "socket.connect",
)
"""Audit events of Python that no reading may cause."""
SPECIAL: dict[str, Callable[[Path], None]] = {
    "pipe": os.mkfifo,
    "endless device": lambda path: path.symlink_to("/dev/zero"),
    "terminal": lambda path: path.symlink_to("/dev/tty"),
    "folder": Path.mkdir,
    "link to itself": lambda path: path.symlink_to(path.name),
    "link to nothing": lambda path: path.symlink_to("nothing there"),
    "socket": lambda path: _bind(path),
    "missing": lambda path: None,
}


class HangError(BaseException):
    """Reading took too long. Code that is read by must not catch it as one of its own exceptions."""


class Campaign:
    """Counts what became of every attack. Details of what should not be are kept, with the seed to repeat them."""

    def __init__(self, home: Path, seed: int, names: Sequence[str] = ()) -> None:
        self.home, self.seed = home, seed
        self.materials = materials(home, names)
        self.watch = Watch()
        self.whole = {material.name: digest(material.read(material.copy(home / "read"))) for material in self._each()}
        self.counts: Counter[tuple[str, str, str]] = Counter()
        self.turns: Counter[str] = Counter()
        self.bad: list[str] = []

    def _each(self) -> Iterator[Material]:
        for material in self.materials:
            shutil.rmtree(self.home / "read", ignore_errors=True)
            yield material

    def mutants(self, material: Material, number: int) -> None:
        """The next mutants of a material, of its kinds in turn."""
        for _ in range(number):
            self.mutant(material, self.turns[material.name])
            self.turns[material.name] += 1

    def mutant(self, material: Material, turn: int) -> str:
        """One mutant, which depends on the seed, the material and the turn alone; what it was, in words."""
        chance = random.Random(f"{self.seed} {material.name} {turn}")
        kind = material.kinds[turn % len(material.kinds)]
        place, files = self._fresh(material), material.files()
        texts = [name for name in files if name.endswith(".json")]
        weights = [name for name in files if name not in texts]
        name = chance.choice(files if kind == "bytes" else weights if kind == "header" else texts)
        mutation = self._mutate(place, name, kind, chance)
        what = f"{material.name}/{name}, {kind}, seed {self.seed}, turn {turn}: {mutation}"
        self._judge(material, place, kind, what, may_change=name in NOT_HASHED)
        return what

    def _mutate(self, place: Path, name: str, kind: str, chance: random.Random) -> str:
        """Change a file; in words, how."""
        path = place / name
        if kind == "header":
            return damage_header(path, chance)
        data = bytearray(path.read_bytes())
        if kind == "bytes":
            mutation = chance.choice(MUTATIONS)
            mutation(data, chance)
            path.write_bytes(data)
            return mutation.__name__
        made = json.loads(data)
        done = edit(made, chance)
        if kind == "JSON":
            path.write_bytes(canonical(made))
        else:
            forge(place, path, made)
        return done

    def special_files(self, material: Material) -> None:
        for name in material.files():
            for kind, make in SPECIAL.items():
                place = self._fresh(material)
                (place / name).unlink()
                make(place / name)
                what = f"{material.name}/{name}, {kind}"
                self._judge(material, place, "special", what, may_change=name in NOT_HASHED)

    def _judge(self, material: Material, place: Path, kind: str, what: str, *, may_change: bool) -> None:
        with self.watch:
            found = self._outcome(material, place, kind, what)
        found = self.watch.found() or found
        if found == "silent change" and may_change:
            found = "no effect"
        self.counts[material.name, kind, found] += 1
        if found in BAD:
            self.bad.append(f"{found}: {what}")

    def _outcome(self, material: Material, place: Path, kind: str, what: str) -> str:
        try:
            with warnings.catch_warnings(), time_limit(SECONDS):
                warnings.simplefilter("ignore")
                made = material.read(place)
                if kind == "forgery":
                    material.use(made)
        except AttnworksError as error:
            text = str(error)
            return "refused" if text.isprintable() and len(text) < LONGEST_MESSAGE else "traceback"
        except HangError:
            return "hang"
        except Exception:
            self.bad.append(f"{what}: {traceback.format_exc(limit=-4)}")
            return "traceback"
        if digest(made) == self.whole[material.name]:
            return "no effect"
        return "accepted" if kind == "forgery" or not material.hashed else "silent change"

    def _fresh(self, material: Material) -> Path:
        shutil.rmtree(self.home / "attacked", ignore_errors=True)
        return material.copy(self.home / "attacked")

    def table(self) -> str:
        """Rows of materials and attacks, columns of outcomes."""
        rows = sorted({(name, kind) for name, kind, _ in self.counts})
        lines = [f"{'attacked':<10}{'by':<10}" + "".join(f"{outcome:>15}" for outcome in OUTCOMES)]
        for name, kind in rows:
            cells = "".join(f"{self.counts[name, kind, outcome]:>15,}" for outcome in OUTCOMES)
            lines.append(f"{name:<10}{kind:<10}{cells}")
        return "\n".join(lines)


class Watch:
    """Notes what code does while it runs inside a `with` block: events that reading never causes, and its memory."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.running, self.kilobytes, self.grown = False, 0, 0
        sys.addaudithook(self._note)

    def _note(self, event: str, _: object) -> None:
        if self.running and event in EVENTS:
            self.events.append(event)

    def __enter__(self) -> None:
        self.events.clear()
        self.running, self.kilobytes = True, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    def __exit__(self, *_: object) -> None:
        self.running = False
        self.grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - self.kilobytes

    def found(self) -> str | None:
        """The outcome, if something was executed or much memory taken."""
        if self.events:
            return "executed"
        return "memory" if self.grown > 1024 * MEGABYTES else None


def forge(place: Path, path: Path, made: object) -> None:
    """Write an edited JSON file, and make right every hash in the folder that would give it away."""
    changed = {path: canonical(_resealed(made))}
    while changed:
        file, text = changed.popitem()
        old = sha256(file.read_bytes()) if file.is_file() else ""
        file.write_bytes(text)
        for other in place.rglob("*.json"):
            if other != file and old and old.encode() in (data := other.read_bytes()):
                changed[other] = canonical(_resealed(json.loads(data.replace(old.encode(), sha256(text).encode()))))


def _resealed(made: object) -> object:
    if not isinstance(made, dict) or "sha256" not in made:
        return made
    inner = {key: value for key, value in made.items() if key != "sha256"}
    return inner | {"sha256": sha256(canonical(inner))}


def _bind(path: Path) -> None:
    """A socket; its path may be too long for the system, so that it is made where it stands."""
    before = Path.cwd()
    os.chdir(path.parent)
    try:
        socket.socket(socket.AF_UNIX).bind(path.name)
    finally:
        os.chdir(before)


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    def give_up(number: int, frame: FrameType | None) -> None:
        raise HangError

    before = signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _first_save(home: Path) -> Saves:
    saves = Saves(_new(home / "saves") / "model", exchange=True)
    saves.save(1)
    return saves


def _new(folder: Path) -> Path:
    folder.mkdir()
    return folder


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Attack everything that attnworks reads, and count what happens.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--of", default="", help=f"names of some of {', '.join(MATERIALS)}; default: all")
    parser.add_argument("--mutants", type=int, help="try this number of mutants of each, and nothing else")
    asked = parser.parse_args(arguments)
    names = asked.of.split(",") if asked.of else []
    if unknown := {*names} - {*MATERIALS}:
        parser.error(f"--of: no {min(unknown)}")
    if asked.mutants is not None:
        return _mutants_alone(asked.seed, names, asked.mutants)
    end = time.monotonic() + 60 * asked.minutes
    with tempfile.TemporaryDirectory() as home, without_waiting():
        campaign = Campaign(Path(home), asked.seed, names)
        for material in campaign.materials:
            campaign.special_files(material)
        saves = kill_saves(_first_save(Path(home)), asked.seed)
        training = kill_training(_new(Path(home) / "training"), asked.seed, kills=25, steps=40)
        while time.monotonic() < end:
            for material in campaign.materials:
                campaign.mutants(material, 60)
    sys.stdout.write(f"kills: {saves} while saving, {training} while training; all resumed\n")
    return _told(campaign)


def _mutants_alone(seed: int, names: Sequence[str], number: int) -> int:
    """Mutants of each material in steps of a thousand; the table is printed after each step."""
    with tempfile.TemporaryDirectory() as home, without_waiting():
        campaign = Campaign(Path(home), seed, names)
        code = 0
        for start in range(0, number, 1000):
            for material in campaign.materials:
                campaign.mutants(material, min(1000, number - start))
            memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            sys.stdout.write(f"{min(start + 1000, number):,} mutants of each, at most {memory:,.0f} MB of memory\n")
            code = _told(campaign)
            sys.stdout.flush()
    return code


def _told(campaign: Campaign) -> int:
    """Print what was found; the exit code."""
    whole = f"nothing of this was found: {', '.join(BAD)}"
    sys.stdout.write(campaign.table() + "\n" + ("\n".join(campaign.bad[:20]) if campaign.bad else whole) + "\n")
    return 1 if campaign.bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
