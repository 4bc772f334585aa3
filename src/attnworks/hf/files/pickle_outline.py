"""What a pickle of tensors holds, found without unpickling: its instructions are read as a list of words.

Only the instructions of tensors, numbers, strings, lists and dicts are known. Nothing is imported or called: the name
of a function is compared with the few that torch.save writes, and what it would make is described. Every instruction
takes memory of a constant size, or as much as it is long.
"""

from __future__ import annotations

import math
import pickletools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

STORAGES = {
    "torch DoubleStorage": torch.float64, "torch FloatStorage": torch.float32, "torch HalfStorage": torch.float16,
    "torch BFloat16Storage": torch.bfloat16, "torch LongStorage": torch.int64, "torch IntStorage": torch.int32,
    "torch ShortStorage": torch.int16, "torch CharStorage": torch.int8, "torch ByteStorage": torch.uint8,
    "torch BoolStorage": torch.bool,
}  # fmt: skip
DICT, TENSOR, PARAMETER = (
    "collections OrderedDict",
    "torch._utils _rebuild_tensor_v2",
    "torch._utils _rebuild_parameter",
)
CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
VALUES = ("BININT", "BININT1", "BININT2", "BINFLOAT", "BINUNICODE", "SHORT_BINUNICODE", "LONG1")
PUTS, GETS = ("BINPUT", "LONG_BINPUT"), ("BINGET", "LONG_BINGET")
TUPLES = {"EMPTY_TUPLE": 0, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
MAX_DIMENSIONS = 64


class OutlineError(ValueError):
    """A pickle of something else; the message says what was found."""


class Name(NamedTuple):
    """A function or type that the pickle names."""

    name: str


class Storage(NamedTuple):
    """The numbers of one record of the file."""

    dtype: torch.dtype
    key: str
    numel: int


class TensorOutline(NamedTuple):
    """A tensor, as a view of a storage."""

    storage: Storage
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]

    @property
    def numel(self) -> int:
        return math.prod(self.shape)


class _Mark:
    pass


@dataclass
class _Machine:
    stack: list[Any] = field(default_factory=list)
    memo: dict[int, Any] = field(default_factory=dict)
    built: set[int] = field(default_factory=set)
    kept: list[Any] = field(default_factory=list)

    def step(self, name: str, argument: Any) -> None:
        if name in ("PROTO", "STOP"):
            return
        if name in CONSTANTS:
            self.stack.append(CONSTANTS[name])
        elif name in VALUES:
            self.stack.append(argument)
        elif name in PUTS:
            if isinstance(self.stack[-1], _Mark):
                raise OutlineError("a damaged pickle")
            self.memo[argument] = self.stack[-1]
        elif name in GETS:
            self.stack.append(self.memo[argument])
        elif name in TUPLES:
            self.stack.append(tuple(self._pop() for _ in range(TUPLES[name]))[::-1])
        elif (action := _ACTIONS.get(name)) is not None:
            action(self, argument)
        else:
            raise OutlineError(f"the instruction {name}")

    def _pop(self) -> Any:
        if not self.stack or isinstance(self.stack[-1], _Mark):
            raise OutlineError("a damaged pickle")
        return self.stack.pop()

    def _to_mark(self) -> list[Any]:
        items: list[Any] = []
        while self.stack and not isinstance(self.stack[-1], _Mark):
            items.append(self.stack.pop())
        self.stack.pop()
        return items[::-1]

    def _set(self, items: list[Any]) -> None:
        if len(items) % 2 or not isinstance(self.stack[-1], dict):
            raise OutlineError("a damaged dict")
        for key, value in zip(items[::2], items[1::2], strict=True):
            if not isinstance(key, str | int | float):
                raise OutlineError("a dict with keys that are neither text nor numbers")
            self.stack[-1][key] = value

    def _append(self, items: list[Any]) -> None:
        if not isinstance(self.stack[-1], list):
            raise OutlineError("a damaged list")
        self.stack[-1].extend(items)

    def _global(self, argument: str) -> None:
        if argument not in STORAGES and argument not in (DICT, TENSOR, PARAMETER):
            raise OutlineError(argument.replace(" ", ".", 1)[:80])
        self.stack.append(Name(argument))

    def _persistent(self, _: Any) -> None:
        found = self._pop()
        if not (isinstance(found, tuple) and len(found) == 5 and found[0] == "storage" and isinstance(found[1], Name)):
            raise OutlineError("a damaged storage")
        _, kind, key, _, numel = found
        if kind.name not in STORAGES or not isinstance(key, str) or not key.isascii() or not key.isdigit():
            raise OutlineError("a damaged storage")
        if type(numel) is not int or numel < 0:
            raise OutlineError(f"a storage of {str(numel)[:24]} numbers")
        self.stack.append(Storage(STORAGES[kind.name], key, numel))

    def _call(self, _: Any) -> None:
        """Describe what the function would make of its arguments."""
        arguments, function = self._pop(), self._pop()
        if not isinstance(arguments, tuple) or not isinstance(function, Name):
            raise OutlineError("a call of something that is no function")
        if function.name == DICT and arguments == ():
            self.stack.append({})
        elif function.name == PARAMETER and len(arguments) == 3 and isinstance(arguments[0], TensorOutline):
            self.stack.append(arguments[0])
        elif function.name == TENSOR and len(arguments) in (6, 7) and not any(arguments[5:]):
            self.stack.append(_tensor(*arguments[:4]))
        else:
            called = function.name.replace(" ", ".")
            raise OutlineError(f"{called} with other arguments than torch.save writes")

    def _build(self, _: Any) -> None:
        """Attributes of a dict: a state dict has `_metadata`, the versions of its modules."""
        state, made = self._pop(), self.stack[-1]
        if not (isinstance(state, dict) and state.keys() == {"_metadata"} and isinstance(made, dict)):
            raise OutlineError("an object with attributes")
        if id(made) in self.built:
            raise OutlineError("a damaged dict")
        self.built.add(id(made))
        self.kept.append(made)


_ACTIONS: dict[str, Callable[[_Machine, Any], None]] = {
    "EMPTY_DICT": lambda machine, _: machine.stack.append({}),
    "EMPTY_LIST": lambda machine, _: machine.stack.append([]),
    "MARK": lambda machine, _: machine.stack.append(_Mark()),
    "TUPLE": lambda machine, _: machine.stack.append(tuple(machine._to_mark())),
    "SETITEM": lambda machine, _: machine._set([machine._pop(), machine._pop()][::-1]),
    "SETITEMS": lambda machine, _: machine._set(machine._to_mark()),
    "APPEND": lambda machine, _: machine._append([machine._pop()]),
    "APPENDS": lambda machine, _: machine._append(machine._to_mark()),
    "GLOBAL": _Machine._global,
    "BINPERSID": _Machine._persistent,
    "REDUCE": _Machine._call,
    "BUILD": _Machine._build,
}


def outline(data: bytes) -> Any:
    """What the pickle holds, with a `TensorOutline` for every tensor. `OutlineError` for anything else."""
    machine, last = _Machine(), ""
    try:
        for opcode, argument, _ in pickletools.genops(data):
            machine.step(opcode.name, argument)
            last = opcode.name
    except OutlineError:
        raise
    except Exception as error:
        raise OutlineError(f"a damaged pickle ({type(error).__name__})") from error
    if last != "STOP" or len(machine.stack) != 1:
        raise OutlineError("a damaged pickle")
    return machine.stack[0]


def _tensor(storage: Any, offset: Any, shape: Any, stride: Any) -> TensorOutline:
    numbers = (offset, *shape, *stride) if isinstance(shape, tuple) and isinstance(stride, tuple) else (None,)
    if not isinstance(storage, Storage) or any(type(number) is not int or number < 0 for number in numbers):
        raise OutlineError("a damaged tensor")
    if len(shape) != len(stride) or len(shape) > MAX_DIMENSIONS:
        raise OutlineError(f"a tensor of {len(shape)} sizes and {len(stride)} strides")
    made = TensorOutline(storage, offset, shape, stride)
    last = offset + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))
    if made.numel and last >= storage.numel:
        raise OutlineError(f"a tensor of shape {str(list(shape))[:60]} in a storage of {storage.numel:,} numbers")
    if made.numel > storage.numel:
        raise OutlineError(f"a tensor of shape {str(list(shape))[:60]} that repeats {storage.numel:,} numbers")
    return made
