"""The decision as a plain function, for those who want no hooks; and how run_configs are found and read."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from gtp_migrate.shim.saved import counts, decide, mark_config

RUN_CONFIG = "run_config.yaml"


def reset_weight_shards(model_config: Any, saved: Any) -> dict[str, tuple[int | None, int | None]]:
    """Make the shard counts of a loaded model config fit this run, without any hook: the same decision.

    Call it after this run's TP, ETP and EP are set and before ``finalize()``. A count that differs from the saved
    one was set by this run and stays, null too; the same number set again cannot be told from the loaded one here.

    Args:
        model_config: a Bridge model provider, a builder config, or a Core config.
        saved: the checkpoint's run_config as a mapping, or its folder: one with a ``run_config.yaml``, or one of
            ``iter_…`` folders, of which the one counts that ``latest_checkpointed_iteration.txt`` names.

    Returns:
        Each changed field with its old and its new value; empty where nothing changed.

    Raises:
        FileNotFoundError: ``saved`` is a folder without a run_config.yaml.
        ValueError: ``saved`` holds no model config.
        TypeError: ``saved`` is neither.
    """
    if isinstance(saved, Mapping):
        recorded, checkpoint = model_section(saved), "the checkpoint"
    elif isinstance(saved, (str, os.PathLike)):
        path = _run_config_path(Path(saved))
        recorded, checkpoint = model_section(read_yaml(path)), str(path.parent)
    else:
        raise TypeError(f"saved must be a mapping or a checkpoint folder, not {type(saved).__name__}")
    config = getattr(model_config, "__dict__", {}).get("transformer") or model_config
    before = counts(config)
    mark_config(config, recorded, checkpoint)
    decide(config)
    return {name: (before[name], now) for name, now in counts(config).items() if now != before[name]}


def model_section(run_config: Any) -> Mapping[str, Any]:
    """The model config of a run_config, of a builder config its ``transformer``; or the mapping itself if it is one.

    Raises:
        ValueError: there is none.
    """
    section = run_config.get("model", run_config) if isinstance(run_config, Mapping) else None
    if not isinstance(section, Mapping):
        raise ValueError("a run_config must be a mapping with a model section")
    nested = section.get("transformer")
    return nested if isinstance(nested, Mapping) else section


def _run_config_path(checkpoint: Path) -> Path:
    if checkpoint.is_file():
        return checkpoint
    folders = sorted(checkpoint.glob("iter_*"), key=lambda folder: (len(folder.name), folder.name), reverse=True)
    with suppress(OSError, ValueError):  # else nobody says which: the newest one that is whole
        finished = int((checkpoint / "latest_checkpointed_iteration.txt").read_text(encoding="utf-8"))
        folders = [checkpoint / f"iter_{finished:07d}"]
    for folder in (checkpoint, *folders):
        if (folder / RUN_CONFIG).is_file():
            return folder / RUN_CONFIG
    raise FileNotFoundError(f"{checkpoint}: no {RUN_CONFIG} in it nor in its last finished iter_… folder")


def read_yaml(path: Any) -> Any:
    """Raises ValueError where the file is not YAML."""
    import yaml

    with open(path, encoding="utf-8") as file:
        try:
            return yaml.safe_load(file)
        except yaml.YAMLError as error:
            raise ValueError(f"{path}: not readable as YAML: {error}") from error
