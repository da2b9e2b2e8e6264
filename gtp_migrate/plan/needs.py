"""What the proof asks for: the plan is made again with more of these until it holds, or nothing helps."""

from __future__ import annotations

from dataclasses import dataclass

from gtp_migrate.shards import Axis


@dataclass(frozen=True)
class OwnNumber:
    """A model of a recipe needs a number of its own: what its layers give it is not right for it."""

    recipe: str
    model: str
    axis: Axis


@dataclass(frozen=True)
class NoInterpolation:
    """A setting cannot be an interpolation: in one of the places it ends up in, nothing resolves it."""

    #: Of the entry.
    setting: tuple[str, int]


@dataclass(frozen=True)
class KeepHusk:
    """A mapping `model_overrides` that nothing is left of stays: something refers to it, or it keeps the policy's off a
    model that is built from the policy."""

    #: The file, behind all links.
    real: str


Need = OwnNumber | NoInterpolation | KeepHusk
