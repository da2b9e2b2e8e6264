"""A look at the bytes of a recipe that costs next to nothing: most files of a tree need no more."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from typing import NamedTuple

from gtp_migrate.recipes.keys import NEW_KEY_BYTES, OLD_KEY_BYTES

#: Part of old and new keys alike: one search for most files instead of two.
_IN_ALL_KEYS = b"_weight_"
_WORD = b"defaults"
# What stands behind the word where it could be a key, at any depth and in any style of writing ...
_KEY_LIKE = re.compile(rb"""["']?[ \t\r\n]*:""")
# ... and the plain ways of writing it that can be read without a parser: a path, a list of paths. What follows
# must be another key, so that nothing can belong to the value still.
_PATH = rb"""(?:"[^"\\\s$]+\.ya?ml"|'[^'\s$]+\.ya?ml'|[A-Za-z0-9_./][^\s:#,'"\[\]{}]*\.ya?ml)"""
_END = rb"[ \t]*(?:#[^\n]*)?\r?(?:\n|\Z)"
_SKIP = rb"(?:[ \t]*(?:#[^\n]*)?\r?\n)*"
_PLAIN = re.compile(
    rb"defaults:"
    rb"(?:[ \t]+(?P<paths>" + _PATH + rb"|\[[ \t]*" + _PATH + rb"(?:[ \t]*,[ \t]*" + _PATH + rb")*[ \t]*\])" + _END
    # A list, an item a line.
    + rb"|" + _END + rb"(?P<list>(?:[ \t]*-[ \t]+" + _PATH + _END + rb")+))"
    rb"(?=" + _SKIP + rb"(?:[A-Za-z_\"']|[ \t]*\Z))"
)  # fmt: skip
_ITEM = re.compile(_PATH)
# A comment, as far as it is sure to be no more: YAML 1.1 ends a line also at CR, NEL and U+2028.
_COMMENT = re.compile(rb"^[ \t]*#[^\n\r\xc2\xe2]*", re.M)
_ESCAPE = re.compile(rb"\\(?:x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|\r?\n[ \t]*)")
_UTF16 = (b"\xff\xfe", b"\xfe\xff")


class Glance(NamedTuple):
    """What the bytes of a file show."""

    #: Whether an old key stands anywhere in it, be it in a comment.
    old: bool
    #: Whether a new key does.
    new: bool
    #: The `defaults:` of the file; None where only a parser can tell.
    defaults: tuple[str, ...] | None


def glance(data: bytes) -> Glance:
    """Looks for old and new keys, and reads a plainly written `defaults:`."""
    if data[:2] in _UTF16:
        data = data.decode("utf-16", "replace").encode()
    text = _ESCAPE.sub(_unescaped, data) if b"\\" in data else data
    has_any = _IN_ALL_KEYS in text
    old = has_any and OLD_KEY_BYTES in text
    new = has_any and NEW_KEY_BYTES in text
    if _WORD not in text:
        return Glance(old, new, ()) if old or new else _NOTHING
    is_escaped = text is not data and text.count(_WORD) != data.count(_WORD)
    return Glance(old, new, None if is_escaped else _defaults(data))


_NOTHING = Glance(False, False, ())


def _unescaped(escape: re.Match[bytes]) -> bytes:
    """What an escape of a double-quoted text stands for, where that can be part of a key."""
    digits = escape[1] or escape[2] or escape[3]
    number = int(digits, 16) if digits else 0
    return b"" if not digits else bytes([number]) if 0x20 < number < 0x7F else escape[0]


def _defaults(data: bytes) -> tuple[str, ...] | None:
    first = data.find(_WORD)
    is_only_one = _starts_line(data, first) and data.find(_WORD, first + 1) < 0
    spots = [first] if is_only_one else list(_outside_of_comments(data))
    key_like = [spot for spot in spots if _KEY_LIKE.match(data, spot + len(_WORD))]
    if not key_like:
        # Behind `? defaults`, the colon may stand anywhere.
        return None if spots and b"?" in data else ()
    plain = _PLAIN.match(data, key_like[0])
    if len(key_like) > 1 or not plain or not _starts_line(data, key_like[0]):
        return None
    return _paths(plain["paths"] or plain["list"])


@functools.lru_cache(maxsize=1 << 12)  # Recipes side by side inherit from the same file.
def _paths(written: bytes) -> tuple[str, ...]:
    lines = _COMMENT.sub(b"", written).split(b"\n")
    items = (item for line in lines for item in _ITEM.findall(line.partition(b" #")[0]))
    return tuple(item.strip(b"\"'").decode("utf-8", "replace") for item in items)


def _outside_of_comments(data: bytes) -> Iterator[int]:
    """Where the word stands, but for lines that are sure to be comments."""
    spot = data.find(_WORD)
    while spot >= 0:
        line = data.rfind(b"\n", 0, spot) + 1
        comment = _COMMENT.match(data, line, spot) if line < spot else None
        if not comment or comment.end() < spot:
            yield spot
        spot = data.find(_WORD, spot + len(_WORD))


def _starts_line(data: bytes, spot: int) -> bool:
    return spot == 0 or data[spot - 1] == 0x0A or (spot == 3 and data[:3] == b"\xef\xbb\xbf")
