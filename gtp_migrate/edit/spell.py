"""Values as YAML text that every reader takes for the same: PyYAML, OmegaConf's rules, YAML 1.1 and 1.2.

    5.0e-06 (a float)  →  5.0e-06        12 (a number)       →  12
    "yes" (a string)   →  "yes"          "0o14" (a string)   →  "0o14"
    None               →  null           "${.size}"          →  ${.size}, quoted where it has to be

Where readers differ (`yes`, `012`, `1e-05`, `1_000`), what is written is what they agree on.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any

#: A string that nobody takes for anything else, but for the words below.
_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]*", re.ASCII)
_WORDS = frozenset({"true", "false", "yes", "no", "on", "off", "y", "n", "null", "nan", "inf"})
_NAMED = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t"}


class CannotSpell(Exception):
    """A value that YAML has no plain form for."""


def plain(value: str, quote: str = "", *, flow: bool) -> str:
    """A plain YAML scalar, quoted as the one was that it replaces, or where it has to be.

    Args:
        quote: the quotes of the old one.
        flow: it stands between braces.
    """
    if "$" not in value:
        return value
    if quote == "'" and value.isprintable():
        return "'" + value.replace("'", "''") + "'"
    if quote != '"' and not flow and _is_plain_interpolation(value):
        return value
    return _double(value)


def one_line(data: Any, *, json: bool = False, flow: bool = True) -> str:
    """Plain data as YAML on one line.

    Args:
        json: quote all strings, keys too.
        flow: a scalar stands between braces; what is in a mapping or a list does anyhow.

    Raises:
        CannotSpell: it holds something that is not plain data.
    """
    if isinstance(data, dict):
        entries = (f"{one_line(key, json=json)}: {one_line(value, json=json)}" for key, value in data.items())
        return "{" + ", ".join(entries) + "}"
    if isinstance(data, (list, tuple)):
        return "[" + ", ".join(one_line(item, json=json) for item in data) + "]"
    if isinstance(data, Written):
        return plain(data, flow=flow)
    if isinstance(data, str):
        return _string(data, json=json, flow=flow)
    if data is None:
        return "null"
    if isinstance(data, bool):
        return "true" if data else "false"
    if isinstance(data, int):
        return str(int(data))
    if isinstance(data, float):
        return _float(data)
    raise CannotSpell(f"a value of type {type(data).__name__} cannot be written")


class Written(str):
    """A scalar that is YAML already, unlike a string that is data."""

    __slots__ = ()


def lines(key: str, data: Any, step: str) -> Iterator[str]:
    """An entry in block style, each line with its indent.

    Args:
        step: one more level of indent.
    """
    if isinstance(data, dict) and data:
        yield f"{key}:"
        for inner, value in data.items():
            for line in lines(one_line(inner, flow=False), value, step):
                yield step + line
    elif isinstance(data, (list, tuple)) and any(isinstance(item, (dict, list, tuple)) for item in data):
        yield f"{key}:"
        for item in data:
            yield f"{step}- {one_line(item, flow=False)}"
    else:
        yield f"{key}: {one_line(data, flow=False)}"


def _string(value: str, *, json: bool, flow: bool) -> str:
    if not json:
        if _PLAIN.fullmatch(value) and value.lower() not in _WORDS:
            return value
        if not flow and _is_plain_interpolation(value):
            return value
    return _double(value)


def _is_plain_interpolation(value: str) -> bool:
    """Whether a text that starts with an interpolation can do without quotes outside of braces."""
    return (
        value.startswith("${")
        and value.isprintable()
        and not any(mark in value for mark in (": ", " #"))
        and not value.endswith((":", " "))
    )


def _double(value: str) -> str:
    return '"' + "".join(_escaped(character) for character in value) + '"'


def _escaped(character: str) -> str:
    if character in _NAMED:
        return _NAMED[character]
    if character.isprintable():
        return character
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _float(value: float) -> str:
    if math.isnan(value):
        return ".nan"
    if math.isinf(value):
        return ".inf" if value > 0 else "-.inf"
    digits, e, exponent = repr(value).partition("e")
    # Without the dot it is a string in YAML 1.1.
    return digits + ("" if "." in digits else ".0") + e + exponent
