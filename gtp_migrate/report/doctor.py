"""What :mod:`gtp_migrate.ask.doctor` found: lines for people, JSON for bug reports."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict

from gtp_migrate.ask.doctor import Answer, Diagnosis, Environment
from gtp_migrate.report.lines import Styled

#: Of the JSON; a later one has more or other keys.
SCHEMA = 1


def diagnosis_lines(found: Diagnosis) -> Iterator[str]:
    """For people."""
    yield f"gtp-migrate {found.gtp_migrate}, Python {found.python}"
    for root in found.nemo_rl:
        yield f"NeMo-RL: {root}"
    form = f"NeMo-RL takes {found.form}" if found.form else "Which form NeMo-RL takes is not known"
    yield f"{form}: {found.why_form}"
    yield f"PYTHONPATH, and gtp-shim with it, gets to the workers: {_answer(found.passes_pythonpath)}"
    for environment in found.environments:
        yield ""
        yield from _environment(environment)
    yield ""
    yield Styled("What to do", "bold")
    for sentence in found.todo:
        yield Styled(f"  {sentence}", "yellow")
    if not found.todo:
        yield Styled("  Nothing: all of it fits.", "green")


def diagnosis_json(found: Diagnosis) -> str:
    """For bug reports: the same, key by key as :class:`gtp_migrate.ask.doctor.Diagnosis` has it."""
    return json.dumps({"schema": SCHEMA, **asdict(found)}, indent=2)


def _environment(environment: Environment) -> Iterator[str]:
    yield Styled(environment.name, "bold")
    for package in environment.packages:
        version = package.version or ("of unknown version" if package.source else "not here")
        yield f"  {package.name} {version}{f' ({package.source})' if package.source else ''}"
    if environment.has_bridge:
        yield f"  takes the old GTP size: {_answer(environment.takes_size)}"
        yield f"  takes shard counts: {_answer(environment.takes_count)}"
        yield f"  GTP can be active: {_answer(environment.gtp_can_be_active)}"
        fitting = sum(1 for hook in environment.hooks if hook.fits)
        yield f"  hooks of the shim that fit: {fitting} of {len(environment.hooks)}"
        for hook in environment.hooks:
            if not hook.fits:
                yield Styled(f"    {'not there' if hook.fits is False else 'cannot be told'}: {hook.target}", "yellow")
    if environment.shim_reaches is not None:
        yield f"  gtp-shim reaches it: {_answer(environment.shim_reaches)}"


def _answer(answer: Answer) -> str:
    return f"{'not known' if answer.value is None else 'yes' if answer.value else 'no'} ({answer.why})"
