"""The whole way: survey → tree → runs → stock → draft (plan, edit, prove) → settle. Nothing is written."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from gtp_migrate.account import cannot_be_loaded
from gtp_migrate.draft import draft
from gtp_migrate.forms import Style, Target
from gtp_migrate.outcome import Outcome
from gtp_migrate.plan.stock import Stock, take_stock
from gtp_migrate.recipes.checkout import Surroundings, surroundings
from gtp_migrate.recipes.discover import Found, discover, shorten
from gtp_migrate.recipes.survey import Progress, Survey
from gtp_migrate.recipes.tree import Tree, read_tree
from gtp_migrate.runs import nemo_rl
from gtp_migrate.runs.runs import Assumed, Runs
from gtp_migrate.second_judge import SecondJudge
from gtp_migrate.settle import mention, settle
from gtp_migrate.unfinished import unfinished


@dataclass(frozen=True)
class Options:
    """What a person asked for."""

    paths: tuple[str, ...]
    #: None: find out.
    target: Target | None = None
    style: Style = Style.AUTO
    assumed: Assumed = field(default_factory=Assumed)
    #: These runs install the runtime shim, which keeps copied models whole.
    runtime_shim: bool = False
    #: NeMo-RL's own functions have to say the same of every run.
    prove_real: bool = False
    #: Folders that stand for others in absolute paths of `defaults:`, both normalized, the longest first.
    maps: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Worked:
    """What was worked out."""

    outcome: Outcome
    #: All that is known of the runs; None where no recipe has a setting.
    stock: Stock | None


def migrate(options: Options, surveyed: Survey, progress: Progress = lambda *_: None) -> Outcome:
    """What :func:`work_out` makes of the given files."""
    return work_out(options, surveyed, progress).outcome


def work_out(
    options: Options, surveyed: Survey, progress: Progress = lambda *_: None, always: Iterable[str] = ()
) -> Worked:
    """Works out everything, and proves it. Nothing is written.

    Args:
        options: what a person asked for.
        surveyed: the given files.
        progress: called now and then.
        always: given recipes to look at whatever they have, by id.

    Raises:
        UndecidedError: nobody can tell which form to write.
        JudgeError: NeMo-RL and Bridge are wanted as judges, and are not there.
    """
    outcome = Outcome(files=surveyed.count, problems=list(surveyed.problems))
    outcome.unread = [cannot_be_loaded(each.place.path, each, [each.place.path]) for each in surveyed.unreadable]
    checkouts = surroundings((*options.paths, *surveyed.behind_links()))
    stopped: list[str] = []
    tree = read_tree(surveyed, _in(checkouts, stopped), options.maps, always=always)
    _note(outcome, surveyed, checkouts, tree)
    if stopped or not tree.recipes:
        outcome.problems += map(unfinished, stopped)
        outcome.left |= bool(stopped)
        return Worked(outcome, None)
    # Also what a recipe inherits from may stand in a NeMo-RL, as in a submodule beside the recipes.
    layers = {layer for recipe in tree.recipes for layer in (recipe, *tree.orders.get(recipe, ()))}
    roots = nemo_rl.around(layers) or nemo_rl.installed()
    outcome.choice = nemo_rl.asked_for(options.target) if options.target else nemo_rl.choose(roots)
    pins_copies = options.runtime_shim or outcome.choice.target is Target.MEGATRON_CFG
    runs = Runs(tree, options.assumed, nemo_rl.launchers(roots))
    stock = take_stock(tree, runs, outcome.choice.target, pins_copies=pins_copies, progress=progress)
    latest = draft(stock, options.style, progress)
    with SecondJudge(stock, roots, wanted=options.prove_real) as judge:
        settle(outcome, stock, latest, judge.failures(latest))
    outcome.notes += judge.notes
    mention(outcome, tree)
    outcome.problems = sorted(dict.fromkeys(outcome.problems), key=lambda problem: problem.place)
    return Worked(outcome, stock)


def _in(checkouts: Surroundings, stopped: list[str]) -> Iterable[Found]:
    folders = discover(checkouts.roots, unfinished=lambda path: stopped.append(shorten(path)))
    # The roots are absolute, and a person names files from where they are.
    named = (folder._replace(prefix=shorten(folder.prefix)) for folder in folders)
    return (folder.found(name) for folder in named for name in folder.names)


def _note(outcome: Outcome, surveyed: Survey, checkouts: Surroundings, tree: Tree) -> None:
    """What was not looked at, as far as somebody may think that it was."""
    for pattern in surveyed.unmatched:
        outcome.notes.append(f"--exclude {pattern} names no file")
    ignored = sum(1 for file in surveyed.ignored if file.id in tree.files and tree.files[file.id].glance.old)
    if ignored:
        files = "1 file that git ignores mentions" if ignored == 1 else f"{ignored:,} files that git ignores mention"
        outcome.notes.append(f"{files} an old key and was left alone (--no-ignore takes such files too)")
    for root, outer in checkouts.outer.items() if tree.recipes else ():
        outcome.notes.append(
            f"{shorten(root)} is a submodule: recipes of {shorten(outer)} around it that inherit from these were "
            "not looked at"
        )
    if tree.recipes:
        for link, target in surveyed.not_followed:
            outcome.notes.append(
                f"{link} leads out of what was given ({target}) and was not followed; give that folder too"
            )
