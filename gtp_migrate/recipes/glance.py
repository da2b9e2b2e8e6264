"""A look at the bytes of a recipe that costs next to nothing: most files of a tree need no more."""

from __future__ import annotations

import re
from typing import NamedTuple

from gtp_migrate.recipes.keys import NEW_KEY_BYTES, OLD_KEY_BYTES

# Whatever could be a key `defaults`, at any depth and in any style of writing ...
_KEY_LIKE = re.compile(rb"""(?:\A(?:\xef\xbb\xbf)?|[\n{,?]|---)[ \t\r\n]*["']?defaults["']?[ \t\r\n]*:""")
# ... and the two plain ways of writing it that can be read without a parser: a path, a list of paths.
_PATH = rb"""(?:"[^"\\\s]+\.ya?ml"|'[^'\s]+\.ya?ml'|[A-Za-z0-9_./][^\s:#,'"\[\]{}]*\.ya?ml)"""
_END = rb"[ \t]*(?:#[^\n]*)?\r?(?:\n|\Z)"
_PLAIN = re.compile(
    rb"(?:\A(?:\xef\xbb\xbf)?|\n)defaults:"
    rb"(?:[ \t]+(?P<one>" + _PATH + rb")" + _END + rb"(?![ \t])"
    rb"|" + _END + rb"(?P<many>(?:[ \t]*-[ \t]+" + _PATH + _END + rb")+)(?![ \t-]))"
)
_ITEM = re.compile(rb"^[ \t]*-[ \t]+(" + _PATH + rb")", re.M)
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
    if b"defaults" in data:
        plain = _PLAIN.search(data)
        key_likes = len(_KEY_LIKE.findall(data))
        if plain and key_likes == 1:
            texts = _ITEM.findall(plain["many"]) if plain["many"] else [plain["one"]]
            defaults = tuple(text.strip(b"\"'").decode("utf-8", "replace") for text in texts)
        elif key_likes:
            defaults = None
    return Glance(OLD_KEY_BYTES in data, NEW_KEY_BYTES in data, defaults)
