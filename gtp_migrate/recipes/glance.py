"""A look at the bytes of a recipe that costs next to nothing: most files of a tree need no more."""

from __future__ import annotations

import re
from typing import NamedTuple

from gtp_migrate.recipes.keys import NEW_KEY_BYTES, OLD_KEY_BYTES

# Whatever could be a key `defaults`, at any depth and in any style of writing ...
_KEY_LIKE = re.compile(rb"""defaults["']?[ \t\r\n]*:""")
# ... comments aside, as far as they are sure to be no more (YAML 1.1 ends a line also at NEL and U+2028) ...
_COMMENT = re.compile(rb"^[ \t]*#[^\n\r\xc2\xe2]*", re.M)
# ... and the plain ways of writing it that can be read without a parser: a path, a list of paths. What follows
# must be another key, so that nothing can belong to the value still.
_PATH = rb"""(?:"[^"\\\s$]+\.ya?ml"|'[^'\s$]+\.ya?ml'|[A-Za-z0-9_./][^\s:#,'"\[\]{}]*\.ya?ml)"""
_END = rb"[ \t]*(?:#[^\n]*)?\r?(?:\n|\Z)"
_SKIP = rb"(?:[ \t]*(?:#[^\n]*)?\r?\n)*"
_PLAIN = re.compile(
    rb"(?:\A(?:\xef\xbb\xbf)?|\n)defaults:"
    rb"(?:[ \t]+(?P<paths>"
    + _PATH
    + rb"|\[[ \t]*"
    + _PATH
    + rb"(?:[ \t]*,[ \t]*"
    + _PATH
    + rb")*[ \t]*\])"
    + _END
    + rb"|"
    # A list, an item a line.
    + _END
    + rb"(?P<list>(?:[ \t]*-[ \t]+"
    + _PATH
    + _END
    + rb")+))"
    rb"(?=" + _SKIP + rb"(?:[A-Za-z_\"']|[ \t]*\Z))"
)
_ITEM = re.compile(_PATH)
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
    defaults: tuple[str, ...] | None = ()
    if b"defaults" in data and (key_likes := len(_KEY_LIKE.findall(_COMMENT.sub(b"", data)))):
        plain = _PLAIN.search(data) if key_likes == 1 else None
        defaults = None
        if plain:
            lines = (_COMMENT.sub(b"", plain["list"]) if plain["list"] else plain["paths"]).split(b"\n")
            items = (item for line in lines for item in _ITEM.findall(line.partition(b" #")[0]))
            defaults = tuple(item.strip(b"\"'").decode("utf-8", "replace") for item in items)
    elif b"defaults" in _COMMENT.sub(b"", data) and b"?" in data:
        defaults = None
    return Glance(OLD_KEY_BYTES in data, NEW_KEY_BYTES in data, defaults)
