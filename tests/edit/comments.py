"""The comments of a text, to see that none is lost."""

from __future__ import annotations

from collections import Counter
from typing import Any

import yaml

from gtp_migrate.edit.nodes import BREAK

_BOM = "\ufeff"
#: The fast scanner where there is one, then the one that NeMo-RL reads with.
_LOADERS: tuple[Any, ...] = (*((yaml.CSafeLoader,) if yaml.__with_libyaml__ else ()), yaml.SafeLoader)


def comments(text: str) -> Counter[str]:
    """What stands between the tokens of a text behind a `#`, and how often.

    Raises:
        yaml.YAMLError: the text is not YAML.
    """
    text = text.removeprefix(_BOM)
    for loader in _LOADERS[:-1]:
        try:
            return _comments(text, loader)
        except (yaml.YAMLError, UnicodeEncodeError):
            pass
    return _comments(text, _LOADERS[-1])


def _comments(text: str, loader: Any) -> Counter[str]:
    found: Counter[str] = Counter()
    position = 0
    for token in yaml.scan(text, Loader=loader):
        start = token.start_mark.index
        if start > position and "#" in (gap := text[position:start]):
            _between(gap, found)
        position = max(position, token.end_mark.index)
    _between(text[position:], found)
    return found


def _between(gap: str, found: Counter[str]) -> None:
    for line in BREAK.split(gap):
        mark = line.find("#")
        if mark >= 0:
            found[line[mark:].strip()] += 1
