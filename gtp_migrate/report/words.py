"""What all reports for people say in the same words."""

from __future__ import annotations

from gtp_migrate.forms import Mode
from gtp_migrate.outcome import Outcome
from gtp_migrate.plan.changes import Add, Drop
from gtp_migrate.plan.planner import Planned
from gtp_migrate.recipes.keys import dotted

#: What the states of a run are called (:func:`gtp_migrate.report.data.state`).
STATES = {
    "proven": "proven",
    "not proven": "not proven",
    "left": "needs a person",
    "same": "not changed",
}


def count(number: int, noun: str) -> str:
    """`1 file`, `2,000 files`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def copies(number: int | None) -> str:
    """`1 copy`, `2 copies`, `? copies`."""
    return "1 copy" if number == 1 else f"{'?' if number is None else f'{number:,}'} copies"


def headline(outcome: Outcome) -> str:
    """The answer in a few words."""
    unproven = _changed(outcome) - len(outcome.proven)
    if not outcome.changes:
        return "nothing was changed" if outcome.problems else "nothing to migrate"
    if unproven:
        return f"{count(unproven, 'changed recipe')} not proven"
    return "no model's layout changes"


def verdict(outcome: Outcome) -> str:
    """The answer in two or three sentences."""
    said = []
    if outcome.changes:
        files = count(len(outcome.edited), "file")
        said.append(f"{count(len(outcome.changes), 'setting')} in {files} {done(outcome)}.")
        said.append(
            f"{len(outcome.proven):,} of {count(_changed(outcome), 'changed recipe')} proven to train with the same "
            "TP, ETP, GTP and expert GTP, model by model."
        )
    if outcome.problems:
        places = len(outcome.problems)
        said.append(f"{count(places, 'place')} {'needs' if places == 1 else 'need'} a person.")
    else:
        said.append("Nothing is left for a person.")
    return " ".join(said)


def fit(outcome: Outcome) -> str:
    """How many runs do not fit their GPUs; empty where all do, as far as that is known."""
    unfit = outcome.unfit
    if not unfit:
        return ""
    said = "1 run does not fit its GPUs" if len(unfit) == 1 else f"{len(unfit):,} runs do not fit their GPUs"
    return f"{said}{', before and after alike' if is_alike(outcome) else ''}."


def is_alike(outcome: Outcome) -> bool:
    """Whether the runs that do not fit their GPUs have done so no better before."""
    return all(run.is_proven or not run.changed for run in outcome.unfit)


def done(outcome: Outcome) -> str:
    """What became of the settings."""
    return "migrated" if outcome.mode is Mode.WRITE else "to migrate"


def sentence(each: Planned, mode: Mode) -> str:
    """What becomes of a setting, or has become of it."""
    was_written = mode is Mode.WRITE
    if isinstance(each.change, Add):
        said = f"{dotted(each.mapping)} {'got' if was_written else 'gets'} {each.new} of its own"
    elif isinstance(each.change, Drop):
        why = each.new.removeprefix("removed (").removesuffix(")")
        said = f"{each.old} {'was' if was_written else 'is'} removed: {why}"
    else:
        said = f"{each.old} {'became' if was_written else 'becomes'} {each.new}"
    return "; ".join(filter(None, (said, each.parallel)))


def _changed(outcome: Outcome) -> int:
    return sum(bool(run.changed) for run in outcome.runs)
