"""A setting that is left as it is: why, and the way out."""

from __future__ import annotations


class Refused(Exception):
    """A setting that needs a person: what is wrong with it, and what to do."""

    def __init__(self, what: str, todo: str, *, blocks: bool = True, is_whole: bool = False) -> None:
        super().__init__(what)
        self.what = what
        self.todo = todo
        #: Whether the file cannot be changed at all for it.
        self.blocks = blocks
        #: Whether `what` names the setting itself.
        self.is_whole = is_whole
