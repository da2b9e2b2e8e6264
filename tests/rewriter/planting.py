"""Puts old settings into a copy of a recipe tree, as people would have written them."""

from __future__ import annotations

import random
import re
from pathlib import Path

_HOLDER = re.compile(r"^(?P<indent> *)megatron_cfg:(?P<anchor> *&\w+)?[ \t]*\n(?P<first> +)(?=[^\s#])", re.M)
_OVERRIDES = re.compile(r"^ *model_overrides:.*\n", re.M)


def plant(root: Path, files: int, seed: int = 0) -> dict[Path, int]:
    """Writes old settings into `files` of the recipes below `root`.

    Returns:
        The number of old keys put into each file.
    """
    chance = random.Random(seed)
    candidates = [path for path in sorted(root.rglob("*.yaml")) if _HOLDER.search(path.read_text(encoding="utf-8"))]
    planted = {}
    for path in chance.sample(candidates, files):
        text = path.read_text(encoding="utf-8")
        match = _HOLDER.search(text)
        assert match is not None
        keys = ["gtp_weight_remat_size"]
        if chance.random() < 0.4:
            keys = chance.choice([["expert_gtp_weight_remat_size"], [*keys, "expert_gtp_weight_remat_size"]])
        first = match["first"]
        step = " " * (len(first) - len(match["indent"]))
        sizes = [(key, chance.choice([1, 2, 3, 4, "null"])) for key in keys]
        if chance.random() < 0.3:
            new = f"{first}model_overrides: {{{', '.join(f'{key}: {size}' for key, size in sizes)}}}\n"
        else:
            new = f"{first}model_overrides:\n" + "".join(f"{first}{step}{key}: {size}\n" for key, size in sizes)
        own = _OVERRIDES.search(text)
        if own:
            text = text[: own.start()] + new + text[own.end() :]
        else:
            text = text[: match.end() - len(first)] + new + text[match.end() - len(first) :]
        path.write_text(text, encoding="utf-8")
        planted[path] = len(sizes)
    return planted
