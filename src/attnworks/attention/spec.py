"""A mechanism and its options as one short text: `dense`, `window:window=64`, `bigbird:window=64,n_global=2`."""

from __future__ import annotations

import inspect
import json
from collections import Counter
from dataclasses import dataclass, field

from attnworks.attention.contract import MECHANISMS, Geometry, Mechanism
from attnworks.core.errors import UsageError
from attnworks.core.registry import unknown_name

LONGEST_WORD = 200


@dataclass(frozen=True)
class MechanismSpec:
    """A registered mechanism with the options to build it.

    >>> MechanismSpec.parse("dense")
    MechanismSpec(name='dense', options={})
    """

    name: str
    options: dict[str, object] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> MechanismSpec:
        name, _, rest = text.partition(":")
        pairs = [_parse_option(part, text) for part in rest.split(",")] if rest else []
        for option, count in Counter(option for option, _ in pairs).items():
            if count > 1:
                raise UsageError(
                    asked=f"mechanism {text!r}",
                    expected="each option once",
                    got=f"{option} {count} times",
                    remedy=f"keep one {option}=",
                )
        return cls(name, dict(pairs))

    def __post_init__(self) -> None:
        known = option_names(MECHANISMS[self.name])
        for option, value in self.options.items():
            if option not in known:
                raise unknown_name(f"option of mechanism {self.name!r}", option, known)
            if not _is_option(value, 2**63 if option == "seed" else 2**31):
                raise UsageError(
                    asked=f"mechanism {self.name!r} with {option}={_shown(value)}",
                    expected=f"a number, true, false, null or a word (below 2^31, at most {LONGEST_WORD} letters)",
                    got=type(value).__name__ if isinstance(value, list | dict) else _shown(value),
                    remedy="write it like window:window=64",
                )

    def build(self, geometry: Geometry) -> Mechanism:
        return MECHANISMS[self.name].fitted(geometry, **self.options)

    def serves(self, slot: str) -> bool:
        """Whether it is defined in an attention layer of this kind: enc.0 (self), dec.1 (causal), cross.0."""
        mechanism, kind = MECHANISMS[self.name], slot.partition(".")[0]
        return {"dec": "causal" in mechanism.masks, "cross": mechanism.crosses}.get(kind, True)

    def __str__(self) -> str:
        return self.name + (":" if self.options else "") + ",".join(f"{k}={_write(v)}" for k, v in self.options.items())


def option_names(mechanism: type[Mechanism]) -> tuple[str, ...]:
    """What can be set in a spec: the keyword arguments that the geometry does not settle."""
    parameters = inspect.signature(mechanism.__init__).parameters
    keywords = (name for name, parameter in parameters.items() if parameter.kind is parameter.KEYWORD_ONLY)
    return tuple(name for name in keywords if name not in Geometry._fields)


def _parse_option(part: str, text: str) -> tuple[str, object]:
    key, equals, value = part.partition("=")
    if not (key.isidentifier() and equals and value):
        raise UsageError(
            asked=f"mechanism {text!r}",
            expected="name:option=value,option=value",
            got=f"the part {part!r}",
            remedy="write it like window:window=64",
        )
    return key, _read(value)


def _is_option(value: object, limit: int) -> bool:
    if isinstance(value, int | float):
        return not abs(value) >= limit  # whether NaN makes sense, the mechanism says
    return value is None or (isinstance(value, str) and "," not in value and len(value) <= LONGEST_WORD)


def _shown(value: object) -> str:
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # an integer of thousands of digits, or brackets in brackets
        text = f"a huge {type(value).__name__}"
    return text if len(text) <= 60 else f"{text[:57]}..."


def _read(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):  # no JSON, a number of too many digits, or too many brackets
        return text


def _write(value: object) -> str:
    """Text that `_read` turns back into `value`: JSON, without quotes around plain words."""
    return value if isinstance(value, str) and _read(value) == value else json.dumps(value)


def parse_many(text: str) -> list[MechanismSpec]:
    """Mechanisms in a list, each once; a part that is only an option belongs to the mechanism before it.

    >>> [str(spec) for spec in parse_many("dense,window,window=32,linear")]
    ['dense', 'window:window=32', 'linear']
    """
    whole: list[str] = []
    for part in (part.strip() for part in text.split(",")):
        if whole and "=" in part and ":" not in part:
            whole[-1] += f"{',' if ':' in whole[-1] else ':'}{part}"
        else:
            whole.append(part)
    return list({str(spec): spec for spec in map(MechanismSpec.parse, whole)}.values())
