"""What :mod:`gtp_migrate.ask.explain` and :mod:`gtp_migrate.ask.loading` found, as plain lines."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gtp_migrate.ask.explain import RecipeExplained
from gtp_migrate.ask.loading import Load, Result, Weights
from gtp_migrate.ask.model import Entry, FormEffect, ModelExplained, SideBySide
from gtp_migrate.ask.run_config import FIELDS, SavedConfig
from gtp_migrate.forms import Target
from gtp_migrate.outcome import RunOutcome
from gtp_migrate.recipes.keys import dotted
from gtp_migrate.report.lines import Styled
from gtp_migrate.runs.layout import Layout
from gtp_migrate.runs.nemo_rl import Choice

_TITLE = "bold"
_GOOD = "green"
_WARNING = "yellow"
_BAD = "red"
_NAMED = 4


def recipe_lines(explained: RecipeExplained) -> Iterator[str]:
    """A recipe."""
    yield Styled(explained.recipe, _TITLE)
    if explained.run is not None:
        yield from _run(explained, explained.run)
    for model in explained.models:
        yield ""
        yield from _model(model, explained.choice)
    if explained.changes or explained.why_nothing:
        yield ""
        yield Styled("What to write", _TITLE)
    for change in explained.changes:
        yield f"  {change.place.file_and_line}: {change.old} → {change.new}"
        yield f"    {', '.join(text for text in (dotted(change.mapping), change.parallel) if text)}"
    if explained.why_nothing:
        yield f"  nothing: {explained.why_nothing}"
    if explained.problems:
        yield ""
        yield Styled("What needs a person", _TITLE)
    for problem in explained.problems:
        yield Styled(f"  {problem}", _BAD)


def _run(explained: RecipeExplained, run: RunOutcome) -> Iterator[str]:
    yield f"  made of: {', '.join(run.layers)}"
    if explained.heirs is None:
        yield "  no git checkout is around it: recipes that may inherit from it were not looked for"
    elif explained.heirs:
        yield f"  inherited by: {_names(explained.heirs)}"
    choice = explained.choice
    if choice is not None and choice.is_assumed:
        types = "types the fields" if choice.target is Target.MEGATRON_CFG else "does not type the fields"
        yield f"  assumed: a NeMo-RL that {types}, and takes {choice.target.value} ({choice.why})"
    elif choice is not None:
        yield f"  NeMo-RL takes {choice.target.value}: {choice.why}"
    if run.is_open:
        yield "  open: not all of it is in the files; what is said holds whatever comes with the run"
    if not explained.models:
        yield "  builds no model with Megatron"


def _model(model: ModelExplained, choice: Choice | None) -> Iterator[str]:
    outcome = model.outcome
    switched_off = "" if outcome.is_on else " (Megatron is switched off: it is not built)"
    maybe = "" if model.is_always_built else " (whether it is built comes with the run)"
    yield Styled(f"{outcome.name}{switched_off or maybe}", _TITLE)
    yield f"  {', '.join(model.parallel)}"
    yield from _entries(model.entries)
    if outcome.is_pinned:
        yield "  the run keeps its weights whole, whatever its counts"
    elif model.open is not None:
        yield f"  trains with: {model.open[0]}"
    elif outcome.before is None:
        yield f"  trains with: not known; {outcome.unknown}"
    else:
        yield f"  trains with: {outcome.before}"
        if outcome.after is not None and outcome.after != outcome.before:
            yield f"  after the migration: {outcome.after}"
    if outcome.layout is not None:
        yield from _layout(outcome.layout, model.open)
    if not (model.forms or model.side_by_side or outcome.is_pinned or outcome.has_gtp):
        sizes = (outcome.before.gtp, outcome.before.expert_gtp) if outcome.before is not None else ()
        yield "  the run gives what is ??? here" if None in sizes else "  GTP is not set: nothing to write for it"
    whose = "the NeMo-RL that is assumed" if choice is not None and choice.is_assumed else "this NeMo-RL"
    if model.side_by_side is not None:
        yield from _side_by_side(model.side_by_side, whose)
    for form in model.forms:
        yield from _form(form, whose)
    if model.choices:
        yield Styled("  a person can write one of these, and no other key beside it", _GOOD)
    for what, entry in model.choices:
        yield f"    {entry} ({what})"


def _entries(entries: Iterable[Entry]) -> Iterator[str]:
    known = tuple(entries)
    for title, is_inherited in (("sets", False), ("inherits", True)):
        for entry in known:
            if entry.place is not None and entry.is_inherited is is_inherited:
                why = f"; it {entry.why_open}" if entry.why_open else ""
                yield f"  {title} {entry.key}: {entry.value} ({entry.place.file_and_line}){why}"
    for entry in known:
        if entry.place is None:
            yield f"  gets {entry.key}: {entry.value} ({entry.option or 'no file says it'})"


def _layout(layout: Layout, is_open: tuple[str, str, str] | None) -> Iterator[str]:
    """
    Args:
        layout: of the model.
        is_open: TP and GTP by name, after all sizes, where one of them comes with the run.
    """
    sizes = layout.topology
    tp, gtp = is_open[1:] if is_open is not None else (str(sizes.tp), _text(sizes.gtp))
    dense = f"TP × GTP × CP × PP = {tp} × {gtp} × {layout.cp} × {layout.pp}"
    gpus = _count(layout.gpus, "GPU", "GPUs")
    if layout.gpus is None:
        yield f"  layout: {dense}"
    elif is_open is not None:
        yield f"  layout: {gpus}, {dense}; copies and data lanes follow from that"
    elif layout.warning:
        yield Styled(f"  layout: {gpus}, {dense}; {layout.warning}", _WARNING)
    else:
        copies = f"{_count(layout.copies, 'copy', 'copies')}, {_count(layout.data_lanes, 'data lane', 'data lanes')}"
        yield f"  layout: {gpus}, {dense}; {copies}"


def _side_by_side(together: SideBySide, whose: str) -> Iterator[str]:
    forms = " and ".join(form.value for form in together.forms)
    yield Styled(f"  forms {forms} side by side (as it is now)", _TITLE)
    for entry in together.entries:
        yield f"    {entry}"
    if together.asks:
        yield Styled(f"    they disagree: {', '.join(together.asks)}", _WARNING)
    yield f"    {whose} {together.nemo_rl}"
    yield f"    released Bridge: {together.released}"
    yield f"    new Bridge: {together.new}"


def _form(form: FormEffect, whose: str) -> Iterator[str]:
    marks = [mark for mark, is_so in (("as it is now", form.is_now), ("the right one", form.is_right)) if is_so]
    title = f"  form {form.form.value}" + (f" ({', '.join(marks)})" if marks else "")
    yield Styled(title, _GOOD) if form.is_right else title
    for entry in form.entries:
        yield f"    {entry}"
    yield f"    {whose} {form.nemo_rl}"
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
    yield Styled(f"{saved.path}: a checkpoint's config ({saved.target or 'of no class that it names'})", _TITLE)
    for name in FIELDS:
        if name in saved.values:
            value = saved.values[name]
            yield f"  {name}: {'null' if value is None else value} (line {saved.places[name].line})"
    if saved.is_gated:
        yield "  gated_linear_unit: the gate and up halves of fc1 are one weight there"
    has_gtp = False
    for title, sides in loads:
        yield ""
        yield Styled(title, _TITLE)
        for load in sides:
            has_gtp = has_gtp or _has_gtp(load)
            yield from _load(load)
    if has_gtp:
        yield ""
        yield from _NOTES


def _has_gtp(load: Load) -> bool:
    """Whether GTP is on before or after, or that cannot be told."""
    return load.saved_gtp != 1 or any(result.gtp != 1 for result in load.results)


def _load(load: Load) -> Iterator[str]:
    name = load.axis.abbreviation
    gtp = "numbers that make no sense" if load.saved_gtp is None else f"GTP {_on(load.saved_gtp)}"
    yield f"  {load.axis.name}: saved with {name} {load.saved_with}, {gtp}; loaded at {name} {load.parallel_size}"
    for result in load.results:
        text = f"    {str(result.where) + ':':<23} {_result(result, load)}"
        is_bad = result.error or Weights.SCRAMBLED in (result.if_whole, result.if_cut)
        yield Styled(text, _WARNING) if is_bad and _has_gtp(load) else text


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
    "Released Bridge (0.6 and older) never makes GTP active: what it saved is whole, whatever its config says; only a "
    "Bridge with GTP active cuts weights by it.",
    "Scrambled are the fused and the padded ones (SwiGLU's fc1, in_proj), until Core reads them in logical order (its "
    "pull request 7161).",
    "New Bridge is one with its own check (Bridge pull request 6116), which goes by the configs; before that it reads "
    "them scrambled, and the shim raises GTPReshardError there too.",
)


def asked(tp: int | None, etp: int | None, ep: int | None) -> str:
    """A title: what a checkpoint is loaded at."""
    sizes = [f"{name} {size}" for name, size in (("TP", tp), ("ETP", etp), ("EP", ep)) if size is not None]
    return f"Loaded at {', '.join(sizes)}, the rest as saved" if sizes else "Loaded at the sizes it was saved with"


def _on(size: int | None) -> str:
    return "not known" if size is None else "off" if size == 1 else str(size)


def _text(value: int | None) -> str:
    return "???" if value is None else str(value)


def _count(number: int | None, one: str, many: str) -> str:
    return f"{_text(number)} {one if number == 1 else many}"


def _names(names: tuple[str, ...]) -> str:
    left = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {left:,} more" if left > 0 else "")
