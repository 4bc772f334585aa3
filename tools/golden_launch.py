"""Runs the command line in processes that begin with torch and transformers already imported, which saves seconds each.

Only packages of others are imported beforehand. A command then runs as `python -m attnworks ...` would run it, except
that times are not measured: candidates that take turns get made-up seconds, so that what is chosen by time is the same
in every recording.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import runpy
import subprocess
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

SOURCE = Path(__file__).resolve().parents[1] / "src"
ENVIRONMENT = {
    "PYTHONHASHSEED": "0",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "COLUMNS": "100",
    "NO_COLOR": "1",
    "TERM": "dumb",
    "MPLBACKEND": "Agg",
    "SOURCE_DATE_EPOCH": "0",
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
SLOW_TO_IMPORT = (
    "torch", "torch._dynamo", "torch.distributed", "scipy.linalg", "scipy.optimize", "scipy.sparse.linalg",
    "scipy.stats", "sacrebleu", "matplotlib.pyplot", "rich.progress", "jaxtyping", "starlette.applications", "uvicorn",
    "transformers.models.bert.modeling_bert", "transformers.models.gpt2.modeling_gpt2",
    "transformers.models.t5.modeling_t5", "transformers.models.llama.modeling_llama",
    "transformers.tokenization_utils_tokenizers", "transformers.trainer_utils",
)  # fmt: skip


class Done(NamedTuple):
    """What a command left: its exit code and what it printed."""

    code: int
    out: str
    err: str


def prepare() -> None:
    """Set the environment, starting this script again if need be, and import what is slow."""
    if any(os.environ.get(name) != value for name, value in ENVIRONMENT.items()):
        path = os.pathsep.join(filter(None, (str(SOURCE), os.environ.get("PYTHONPATH"))))
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **ENVIRONMENT, "PYTHONPATH": path})
    for name in SLOW_TO_IMPORT:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    assert "attnworks" not in sys.modules


def fake_clock() -> None:
    """Replace the measurement of times: the first candidate is the slowest, the others get fixed seconds by place."""
    import attnworks.core.timing as timing

    def interleave(candidates: Mapping[str, Callable[[], object]], **_: Any) -> timing.Race:
        for run in candidates.values():
            run()
        seconds = [2e-3, *(1e-3 + 1e-5 * (37 * place % 41) for place in range(1, len(candidates)))]
        return timing.Race({name: (second,) * 7 for name, second in zip(candidates, seconds, strict=False)})

    timing.interleave = interleave


def fork(work: Callable[[], int | None]) -> int:
    """The id of a new process that does this work and ends."""
    sys.stdout.flush()
    sys.stderr.flush()
    if child := os.fork():
        return child
    code = 1
    try:
        code = work() or 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def start(arguments: Sequence[str], folder: Path, logs: Path, *, stdin: str = "", module: str = "attnworks") -> int:
    """The id of a process that runs the module in `folder`; what it prints goes to logs.out and logs.err."""

    def work() -> int:
        logs.with_suffix(".in").write_text(stdin)
        for number, suffix in enumerate((".in", ".out", ".err")):
            flags = os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_CREAT | os.O_TRUNC
            os.dup2(os.open(logs.with_suffix(suffix), flags), number)
        os.chdir(folder)
        sys.path[0] = str(SOURCE)
        sys.argv[1:] = arguments
        if arguments and "--help" not in arguments:
            fake_clock()
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        return 0

    return fork(work)


def ended(child: int, logs: Path) -> Done:
    """Wait for a process that `start` began."""
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return Done(code, *(logs.with_suffix(suffix).read_text(errors="replace") for suffix in (".out", ".err")))


def torchrun(arguments: Sequence[str], folder: Path) -> Done:
    """The command in two processes that share the work."""
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "attnworks"]
    done = subprocess.run([sys.executable, *command, *arguments], cwd=folder, capture_output=True, text=True)
    return Done(done.returncode, done.stdout, done.stderr)
