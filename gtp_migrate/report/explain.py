"""What :mod:`gtp_migrate.ask.explain` and :mod:`gtp_migrate.ask.loading` found, as plain lines."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gtp_migrate.ask.explain import FormEffect, ModelExplained, RecipeExplained
from gtp_migrate.ask.loading import Load, Result
from gtp_migrate.ask.run_config import FIELDS, SavedConfig
from gtp_migrate.recipes.keys import dotted
from gtp_migrate.runs.layout import Layout

_NAMED = 4


def recipe_lines(explained: RecipeExplained) -> Iterator[str]:
    """A recipe."""
    yield explained.recipe
    if explained.run is not None:
        yield f"  made of: {', '.join(explained.run.layers)}"
        if explained.heirs is None:
            yield "  no git checkout is around it: recipes that may inherit from it were not looked for"
        elif explained.heirs:
            yield f"  inherited by: {_names(explained.heirs)}"
        if explained.choice is not None:
            yield f"  NeMo-RL takes {explained.choice.target.value}: {explained.choice.why}"
        if explained.run.is_open:
            yield "  open: a parallel size comes with the run; what is shown of it is one way of several"
        if not explained.models:
            yield "  builds no model with Megatron"
    for model in explained.models:
        yield ""
        yield from _model(model)
    if explained.changes or explained.why_nothing:
        yield ""
        yield "What to write"
    for change in explained.changes:
        yield f"  {change.place.file_and_line}: {change.old} → {change.new}"
        yield f"    {', '.join(text for text in (dotted(change.mapping), change.parallel) if text)}"
    if explained.why_nothing:
        yield f"  nothing: {explained.why_nothing}"
    if explained.problems:
        yield ""
        yield "What needs a person"
    for problem in explained.problems:
        yield f"  {problem}"


def _model(model: ModelExplained) -> Iterator[str]:
    outcome = model.outcome
    yield f"{outcome.name}{'' if outcome.is_on else ' (Megatron is switched off: it is not built)'}"
    yield f"  {', '.join(model.parallel)}"
    for title, is_inherited in (("sets", False), ("inherits", True)):
        for entry in model.entries:
            if entry.place is not None and entry.is_inherited is is_inherited:
                yield f"  {title} {entry.key}: {entry.value} ({entry.place.file_and_line})"
    for entry in model.entries:
        if entry.place is None:
            yield f"  gets {entry.key}: {entry.value} (no file says it)"
    if outcome.is_pinned:
        yield "  the run keeps its weights whole, whatever its counts"
    elif outcome.before is None:
        yield f"  trains with: not known; {outcome.unknown}"
    else:
        yield f"  trains with: {outcome.before}"
        if outcome.after is not None and outcome.after != outcome.before:
            yield f"  after the migration: {outcome.after}"
    if outcome.layout is not None:
        yield from _layout(outcome.layout)
    if not model.forms and not outcome.is_pinned and not outcome.has_gtp:
        yield "  GTP is not set: nothing to write for it"
    for form in model.forms:
        yield from _form(form)


def _layout(layout: Layout) -> Iterator[str]:
    sizes = layout.topology
    dense = f"TP × GTP × CP × PP = {sizes.tp} × {_text(sizes.gtp)} × {layout.cp} × {layout.pp}"
    if layout.gpus is None:
        yield f"  layout: {dense}"
        return
    copies = f"{_count(layout.copies, 'copy', 'copies')}, {_count(layout.data_lanes, 'data lane', 'data lanes')}"
    yield f"  layout: {_count(layout.gpus, 'GPU', 'GPUs')}, {dense}; {layout.warning or copies}"


def _form(form: FormEffect) -> Iterator[str]:
    marks = [mark for mark, is_so in (("as it is now", form.is_now), ("the right one", form.is_right)) if is_so]
    yield f"  form {form.form.value}" + (f" ({', '.join(marks)})" if marks else "")
    for entry in form.entries:
        yield f"    {entry}"
    yield f"    this NeMo-RL {form.nemo_rl}"
    would = "" if form.is_handed_over else ", were it handed over"
    yield f"    released Bridge{would}: {form.released}"
    yield f"    new Bridge{would}: {form.new}"


# -- a checkpoint --------------------------------------------------------------------------------------


def checkpoint_lines(saved: SavedConfig, loads: Iterable[tuple[str, tuple[Load, ...]]]) -> Iterator[str]:
    """A checkpoint's run_config.yaml, and what happens where it is loaded.

    Args:
        saved: what it says.
        loads: each way of loading it, with a title.
    """
    yield f"{saved.path}: a checkpoint's config ({saved.target or 'of no class that it names'})"
    for name in FIELDS:
        if name in saved.values:
            value = saved.values[name]
            yield f"  {name}: {'null' if value is None else value} ({saved.places[name].file_and_line})"
    if saved.is_gated:
        yield "  gated_linear_unit: the gate and up halves of fc1 are one weight there"
    for title, sides in loads:
        yield ""
        yield title
        for load in sides:
            yield from _load(load)
    yield ""
    yield from _NOTES


def _load(load: Load) -> Iterator[str]:
    name = load.axis.abbreviation
    gtp = "numbers that make no sense" if load.saved_gtp is None else f"GTP {_on(load.saved_gtp)}"
    yield f"  {load.axis.name}: saved with {name} {load.saved_with}, {gtp}; loaded at {name} {load.parallel_size}"
    for result in load.results:
        yield f"    {str(result.where) + ':':<23} {_result(result, load)}"


def _result(result: Result, load: Load) -> str:
    if result.error:
        return f"ValueError: {result.error}"
    config = f"GTP {_on(result.gtp)}"
    if (load.saved_gtp or 1) == 1:
        return f"{config}; weights {result.if_whole.value}"
    if result.if_whole is result.if_cut:
        return f"{config}; weights {result.if_whole.value}"
    return f"{config}; weights, if whole: {result.if_whole.value}; if cut by GTP: {result.if_cut.value}"


_NOTES = (
    "Released Bridge (0.6 and older) never makes GTP active: what it saved is whole, whatever",
    "its config says; only a Bridge with GTP active cuts weights by it. Scrambled are the fused",
    "and the padded ones (SwiGLU's fc1, in_proj), until Core reads them in logical order (its",
    "pull request 7161). New Bridge is one with its own check (Bridge pull request 6116), which",
    "goes by the configs; before that it reads them scrambled, and the shim raises",
    "GTPReshardError there too.",
)


def asked(tp: int | None, etp: int | None, ep: int | None) -> str:
    """A title: what a checkpoint is loaded at."""
    sizes = [f"{name} {size}" for name, size in (("TP", tp), ("ETP", etp), ("EP", ep)) if size is not None]
    return f"Loaded at {', '.join(sizes)}, the rest as saved" if sizes else "Loaded at the sizes it was saved with"


def _on(size: int | None) -> str:
    return "???" if size is None else "off" if size == 1 else str(size)


def _text(value: int | None) -> str:
    return "?" if value is None else str(value)


def _count(number: int | None, one: str, many: str) -> str:
    return f"{_text(number)} {one if number == 1 else many}"


def _names(names: tuple[str, ...]) -> str:
    left = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {left:,} more" if left > 0 else "")
