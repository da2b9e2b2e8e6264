"""Another key, and another value, in the same place.

    gtp_weight_remat_size: 3  # why      →  tensor_parallel_num_weight_shards: 12  # why
    {a: 1, "gtp_weight_remat_size": 3}   →  {a: 1, "tensor_parallel_num_weight_shards": 12}

With `keep_nulls`, an old null stays behind the new one:

    gtp_weight_remat_size: null          →  tensor_parallel_num_weight_shards: null
                                            gtp_weight_remat_size: null
"""

from __future__ import annotations

from gtp_migrate.edit.nodes import Alias, Node, Pair, Scalar, last_of
from gtp_migrate.edit.source import CannotEdit, Draft
from gtp_migrate.edit.spell import plain
from gtp_migrate.plan.changes import Replace


def replace(draft: Draft, change: Replace, *, keep_nulls: bool) -> None:
    """Makes one change."""
    pair = draft.pair(change.spot, change.old_key)
    draft.refuse_double(pair.mapping, change.new_key)
    key = pair.key
    assert isinstance(key, Scalar)
    start = key.start if key.quote else draft.text.index(key.value, key.start)
    draft.splices.replace(start, key.end, key.quote + change.new_key + key.quote)
    if change.value is not None:
        value = spelled(pair.value, change.value, flow=pair.mapping.flow)
        draft.splices.replace(pair.value.start, pair.value.end, gap_before(draft, pair) + value)
        draft.forget(pair.value)
    elif not isinstance(pair.value, (Scalar, Alias)):
        raise CannotEdit("its value is not a scalar")
    if keep_nulls and change.is_null:
        _put_back(draft, pair)


def spelled(old: Node, value: str, *, flow: bool) -> str:
    """A new scalar, quoted as the old one was."""
    return plain(value, old.quote if isinstance(old, Scalar) else "", flow=flow)


def gap_before(draft: Draft, pair: Pair) -> str:
    """A blank where a value comes to stand behind its colon: none was written there."""
    if pair.value.start != pair.value.end:
        return ""
    if draft.text[pair.value.start - 1 : pair.value.start] != ":":
        raise CannotEdit("its value is not written out")
    return " "


def _put_back(draft: Draft, pair: Pair) -> None:
    old = f"{pair.name}: null"
    end = last_of(pair.value).end
    if pair.mapping.flow:
        draft.splices.insert(end, f", {old}")
        return
    source = draft.source
    end = source.line_end(end)
    start = source.entry_start(pair)
    draft.splices.insert(end, source.newline(start) + " " * source.column(start) + old)
