"""Outputs without what may differ from run to run or from layout to layout, as JSON that can be compared."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

DROPPED = {"seconds", "minutes", "version", "transformers_version", "training.json"}
"""Keys that are left out: times by the real clock, versions, and the hash of a file with a time in it. Ratios of times
come from a fake clock (see golden_launch.py) and are kept."""
PICTURES_OF_TIMES = ("time.png", "time.svg")
CODE = re.compile(r"(?:\.\./)*[\w./-]*\w\.py\b(?:#L\d+|:\d+)?|\battnworks(?:\.[a-z]\w*)+")
SAME_CODE = re.compile(r"\[<code>\]\(<code>\)(?:, \[<code>\]\(<code>\))+")
DURATION = re.compile(
    r"(?<![\w.-])(?:about |less than )?\d[\d.,]*(?: ?(?:ms|µs|s|min|h)\b| (?:seconds?|minutes?|hours?)\b)"
)
PAGE_DATA = re.compile(r'<script type="text/plain" id="([^"]*)">([^<]*)</script>')


class Cleaner:
    """Replaces the folders of one recording, whatever they are called."""

    def __init__(self, places: dict[str, str]) -> None:
        self.places = sorted(places.items(), key=lambda place: -len(place[0]))

    def text(self, text: str) -> str:
        """Without folders, places in the code and durations."""
        for folder, name in self.places:
            text = text.replace(folder, name)
        return DURATION.sub("<time>", SAME_CODE.sub("[<code>](<code>)", CODE.sub("<code>", text)))

    def data(self, value: Any) -> Any:
        """The same inside JSON, without DROPPED keys. Numbers that JSON has not (NaN) become text."""
        if isinstance(value, dict):
            gone = {key for key, part in value.items() if key in DROPPED and not isinstance(part, dict)}
            kept = {key: part for key, part in value.items() if key not in gone}
            return {self.text(key): self.data(part) for key, part in kept.items()}
        if isinstance(value, list):
            return [self.data(part) for part in value]
        if isinstance(value, float) and not abs(value) < float("inf"):
            return str(value)
        return self.text(value) if isinstance(value, str) else value

    def output(self, text: str) -> Any:
        """What a command printed: JSON, lines of JSON, or lines of text."""
        try:
            return self.data(json.loads(text))
        except ValueError:
            return [self._line(line) for line in text.splitlines()]

    def _line(self, line: str) -> Any:
        try:
            return self.data(json.loads(line)) if line.startswith(("{", "[")) else self.text(line)
        except ValueError:
            return self.text(line)

    def file(self, path: Path) -> Any:
        """A file by its content: tensors by name, JSON as data, a page by its parts, anything else by its hash."""
        content = path.read_bytes()
        match path.suffix:
            case ".safetensors":
                return {"bytes": sha256(content), "tensors": tensors(content)}
            case ".json":
                return self._json(json.loads(content), sha256(content))
            case ".jsonl" | ".md" | ".txt" | ".tsv":
                return self.output(content.decode())
            case ".html":
                return self.page(content.decode())
            case _:
                return sha256(content)

    def _json(self, value: Any, digest: str) -> Any:
        """With the hash of the file where nothing was removed; a seal over what was removed is removed too."""
        clean = self.data(value)
        if clean == value:
            return {"bytes": digest, "data": clean}
        return {
            "data": {key: part for key, part in clean.items() if key != "sha256"} if isinstance(clean, dict) else clean
        }

    def page(self, html: str) -> dict[str, Any]:
        """The data of a page, and the hash of all around them."""
        data = {name: zlib.decompress(base64.b64decode(text), 31) for name, text in PAGE_DATA.findall(html)}
        parts: dict[str, Any] = {name: sha256(blob) for name, blob in data.items()}
        if "page" in data:
            parts["page"] = self.data(json.loads(data["page"]))
        if "blob-claims" in data:  # which are recorded in full elsewhere
            parts["blob-claims"] = sha256(json.dumps(self.data(json.loads(data["blob-claims"]))).encode())
        return parts | {"rest": sha256(PAGE_DATA.sub("", html).encode())}

    def folder(self, folder: Path, root: Path) -> dict[str, Any]:
        """All files below a folder, or the one file."""
        paths = [folder] if folder.is_file() else sorted(path for path in folder.rglob("*") if path.is_file())
        return {str(path.relative_to(root)): self.file(path) for path in paths if path.name not in PICTURES_OF_TIMES}


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def tensors(content: bytes) -> dict[str, Any]:
    """Name -> dtype, shape and hash of every tensor of a safetensors file."""
    (length,) = struct.unpack("<Q", content[:8])
    found: dict[str, Any] = {}
    for name, entry in json.loads(content[8 : 8 + length]).items():
        if name == "__metadata__":
            found[name] = entry
            continue
        start, end = entry["data_offsets"]
        found[name] = [entry["dtype"], entry["shape"], sha256(content[8 + length + start : 8 + length + end])]
    return found


def differences(one: Any, other: Any, path: str = "") -> Iterator[str]:
    """Where two values differ, as a path inside them and both sides."""
    if isinstance(one, dict) and isinstance(other, dict):
        for key in [*one, *(key for key in other if key not in one)]:
            if key not in one or key not in other:
                yield f"{path}/{key}: only in the {'first' if key in one else 'second'}"
            else:
                yield from differences(one[key], other[key], f"{path}/{key}")
    elif isinstance(one, list) and isinstance(other, list):
        if len(one) != len(other):
            yield f"{path}: {len(one)} and {len(other)} entries"
        for place, pair in enumerate(zip(one, other, strict=False)):
            yield from differences(*pair, f"{path}/{place}")
    elif type(one) is not type(other) or one != other:
        yield f"{path}: {_short(one)} and {_short(other)}"


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 100 else f"{text[:97]}..."
