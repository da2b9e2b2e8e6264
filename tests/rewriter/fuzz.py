"""Looks for recipes that the rewriter gets wrong: random trees, judged by the restatement of what NeMo-RL does.

    python -m tests.rewriter.fuzz --seed 1 --minutes 5

Each case is a small tree of files and a command line. What it must hold is in `Case.faults`. A case that fails is made
smaller, by files and by lines, and printed with its seed. Not a test: run by hand, for as long as somebody likes.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import itertools
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any

import yaml
from omegaconf import OmegaConf
from typer.testing import CliRunner

from gtp_migrate.cli import app
from tests.rewriter import restated
from tests.rewriter.restated import COUNTS, CP, EP, ETP, OLD, PP, TP, Sizes, Versions

SETTINGS = (*OLD, *COUNTS)
ENVIRONMENT = "GTP_MIGRATE_TEST_TP"
RELEASED, NEW = Versions(), Versions(new_bridge=True)
TYPED, NEW_TYPED = Versions(typed_counts=True), Versions(typed_counts=True, new_bridge=True)
WITH_RESOLVERS = frozenset({"grpo", "ppo", "sft", "distillation"})
WITHOUT_RESOLVERS = frozenset({"dpo", "rm", "eval"})


# -- writing YAML ----------------------------------------------------------------------------------


@dataclass
class Anchored:
    """A node with an anchor."""

    name: str
    node: Any


@dataclass
class Raw:
    """A scalar, an alias, as it is written."""

    text: str


class Writer:
    """Python data as YAML, in block and flow style, with comments here and there."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.comments = 0

    def file(self, content: dict[str, Any]) -> str:
        return "\n".join(self.block(content, 0)) + "\n" if content else "{}\n"

    def block(self, mapping: dict[str, Any], indent: int) -> Iterator[str]:
        for key, value in mapping.items():
            start = " " * indent + key + ":"
            if isinstance(value, Anchored):
                start += f" &{value.name}"
                value = value.node
            if isinstance(value, dict) and value and (indent == 0 or self.random.random() < 0.8):
                yield start + self.comment()
                yield from self.block(value, indent + self.random.choice([2, 2, 2, 4]))
            elif isinstance(value, list) and value and all(isinstance(each, dict) for each in value):
                yield start
                for each in value:
                    lines = list(self.block(each, indent + 4))
                    yield " " * (indent + 2) + "- " + lines[0][indent + 4 :]
                    yield from lines[1:]
            else:
                yield f"{start} {self.flow(value)}" + self.comment()

    def comment(self) -> str:
        if self.random.random() < 0.85:
            return ""
        self.comments += 1
        return f"  # c{self.comments}"

    def flow(self, node: Any) -> str:
        if isinstance(node, Anchored):
            return f"&{node.name} {self.flow(node.node)}"
        if isinstance(node, Raw):
            return node.text
        if isinstance(node, dict):
            return "{" + ", ".join(f"{key}: {self.flow(value)}" for key, value in node.items()) + "}"
        if isinstance(node, list):
            return "[" + ", ".join(map(self.flow, node)) + "]"
        if node is None:
            return "null"
        if isinstance(node, bool):
            return str(node).lower()
        if isinstance(node, str) and (node.startswith("${") or node == "???"):
            return f'"{node}"'
        return str(node)


# -- random trees ----------------------------------------------------------------------------------


class Author:
    """Makes up a tree."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.odd = random.random() < 0.25
        self.with_shelves = random.random() < 0.4
        self.with_teachers = random.random() < 0.3
        self.with_generation = random.random() < 0.3
        self.with_others = random.random() < 0.3
        self.is_moe = random.random() < 0.4
        self.with_counts = random.random() < 0.2
        self.computed = random.random() < 0.4

    def chance(self, share: float) -> bool:
        return self.random.random() < share

    def pick(self, *choices: Any) -> Any:
        return self.random.choice(choices)

    def tree(self) -> dict[str, str]:
        count = self.pick(1, 2, 2, 3, 3, 4, 5)
        section = self.pick("grpo", "grpo", "grpo", "sft", "dpo", "rm", "distillation", "ppo", None, "eval")
        self.section_in_base = self.chance(0.7)
        names: list[str] = []
        files = {}
        for index in range(count):
            name = self.pick("", "", "", "sub/") + f"r{index}.yaml"
            parents: list[str] = []
            if names and self.chance(0.85):
                parents = self.random.sample(names, min(len(names), self.pick(1, 1, 1, 2)))
            content: dict[str, Any] = {}
            if parents:
                paths = [os.path.relpath(parent, os.path.dirname(name) or ".") for parent in parents]
                content["defaults"] = paths[0] if len(paths) == 1 and self.chance(0.8) else list(paths)
            content.update(self.recipe(bool(parents)))
            if section and (not parents or self.chance(0.1)) and (self.section_in_base or index == count - 1):
                content[section] = {"max_num_steps": 1}
            if section and not self.section_in_base and parents and self.chance(0.6):
                content[section] = {"max_num_steps": 2}
            if self.chance(0.04):
                content[self.pick("grpo", "dpo", "sft")] = {"max_num_steps": 3}
            if not content:
                content["seed"] = index
            files[name] = Writer(self.random).file(content)
            names.append(name)
        return files

    def recipe(self, is_child: bool) -> dict[str, Any]:
        self.shelves: list[str] = []
        self.override_shelves: list[str] = []
        content: dict[str, Any] = {}
        if self.computed and (not is_child or self.chance(0.3)):
            content |= {"tp": self.pick(2, 4), "gtp": self.pick(2, 3)}
        if self.with_shelves and self.chance(0.5):
            for name in self.random.sample(["A", "B"], self.pick(1, 1, 2)):
                content[f"shelf_{name.lower()}"] = Anchored(name, self.megatron_cfg(is_child, on_shelf=True))
                self.shelves.append(name)
        if self.with_shelves and self.chance(0.4):
            content["overrides"] = Anchored("O", self.overrides(force=True))
            self.override_shelves.append("O")
        if not is_child or self.chance(0.8):
            content["policy"] = self.policy(is_child)
        if self.with_others and self.chance(0.5):
            name = self.pick("teacher", "value", "my_model")
            content[name] = {"megatron_cfg": self.held(is_child)}
            if self.chance(0.1):
                content[name] = self.pick("${policy}", {"megatron_cfg": "${policy.megatron_cfg}"})
            elif self.chance(0.15) and "policy" in content:
                content["policy"] = Anchored("P", content["policy"])
                content[name] = self.pick(Raw("*P"), {"<<": Raw("*P"), "precision": "fp8"})
            elif self.chance(0.15):
                overrides = "${policy.megatron_cfg.model_overrides}"
                overrides = self.pick(overrides, {OLD[0]: f"${{policy.megatron_cfg.model_overrides.{OLD[0]}}}"})
                content[name] = {"megatron_cfg": {TP: self.pick(1, 2, 4), "model_overrides": overrides}}
            if self.chance(0.05):
                content["models"] = [{"name": "x", "megatron_cfg": self.held(is_child)}]
        if self.with_teachers and (not is_child or self.chance(0.5)):
            content["on_policy_distillation"] = self.opd(is_child)
        if self.chance(0.1):
            content["note"] = self.pick(
                "${policy.megatron_cfg}",
                "${policy.megatron_cfg.tensor_model_parallel_size}",
                "${policy.megatron_cfg.model_overrides}",
                "\\${mul:2,3}" if self.odd and self.chance(0.1) else "x",
            )
        if self.chance(0.1):
            content["cluster"] = {"gpus_per_node": 8, "num_nodes": self.pick(1, 2, 3)}
        items = list(content.items())
        if self.chance(0.1) and not (self.shelves or self.override_shelves or self.with_others):
            self.random.shuffle(items)
        return dict(items)

    def policy(self, is_child: bool) -> dict[str, Any]:
        policy: dict[str, Any] = {}
        if is_child and self.chance(0.08):
            policy["_override_"] = True
        if not is_child or self.chance(0.85):
            policy["megatron_cfg"] = self.held(is_child)
        if self.chance(0.2):
            policy["precision"] = Raw(self.pick("bf16", '"bf16"'))
        if self.with_generation and (not is_child or self.chance(0.5)):
            policy["generation"] = self.generation(is_child)
        return policy or {"precision": Raw("bf16")}

    def held(self, is_child: bool) -> Any:
        if self.shelves and self.chance(0.2):
            return Raw(f"*{self.pick(*self.shelves)}")
        return self.megatron_cfg(is_child)

    def megatron_cfg(self, is_child: bool, on_shelf: bool = False) -> dict[str, Any]:
        cfg: dict[str, Any] = {}
        if self.shelves and self.chance(0.6):
            cfg["<<"] = Raw(f"*{self.pick(*self.shelves)}")
            if len(self.shelves) > 1 and self.chance(0.4):
                cfg["<<"] = [Raw(f"*{name}") for name in self.shelves]
        if self.chance(0.4):
            cfg["enabled"] = self.pick(True, True, True, False)
        if self.chance(0.5 if is_child else 0.92):
            cfg[TP] = self.parallel("tp")
        if self.is_moe and self.chance(0.4 if is_child else 0.7):
            cfg[ETP] = self.pick(1, 2, 4, None, self.parallel("tp"))
        if self.chance(0.3 if is_child or not self.is_moe else 0.7):
            cfg[EP] = self.pick(1, 1, 2, 4, "???" if self.odd else 1)
        if self.chance(0.1):
            cfg[self.pick(PP, CP)] = 2
        if self.chance(0.45 if is_child else 0.85):
            cfg["model_overrides"] = self.model_overrides()
        if self.with_counts and self.chance(0.15):
            cfg[self.pick(*COUNTS)] = self.pick(None, None, 12, 4)
        if self.chance(0.1):
            cfg["optimizer"] = {"lr": Raw("1e-6"), "betas": [Raw("0.9"), Raw("0.95")]}
        if self.chance(0.15):
            items = list(cfg.items())
            self.random.shuffle(items)
            cfg = dict(items)
        return cfg or {"enabled": True}

    def model_overrides(self) -> Any:
        if self.chance(0.05):
            return None
        if self.chance(0.02):
            return {}
        if self.override_shelves and self.chance(0.4):
            return Raw(f"*{self.pick(*self.override_shelves)}")
        if self.override_shelves and self.chance(0.1):
            return "${overrides}"
        overrides = self.overrides()
        if self.override_shelves and self.chance(0.3):
            overrides = {"<<": Raw(f"*{self.override_shelves[0]}"), **overrides}
        return overrides

    def overrides(self, force: bool = False) -> dict[str, Any]:
        overrides: dict[str, Any] = {}
        if self.chance(0.4):
            overrides["moe_router_dtype"] = self.pick("fp32", Raw('"fp32"'), Raw("fp64"))
        if force or self.chance(0.85):
            overrides[OLD[0]] = self.size()
        if self.is_moe and self.chance(0.5):
            overrides[OLD[1]] = self.size()
        if self.with_counts and self.chance(0.4):
            overrides[self.pick(*COUNTS)] = self.pick(8, 12, 4, None, f"${{mul:2,${{..{TP}}}}}")
        if self.chance(0.1):
            overrides["nested"] = {"x": "${policy.megatron_cfg.tensor_model_parallel_size}"} if self.odd else {"x": 1}
        if self.chance(0.1):
            items = list(overrides.items())
            self.random.shuffle(items)
            overrides = dict(items)
        return overrides

    def env_or(self, *choices: int) -> Any:
        """A number, or in odd trees one from the environment."""
        return f"${{oc.decode:${{oc.env:{ENVIRONMENT},4}}}}" if self.odd and self.chance(0.2) else self.pick(*choices)

    def size(self) -> Any:
        if self.odd and self.chance(0.05):
            return self.env_or(3)
        if self.computed and self.chance(0.2):
            return "${gtp}"
        if self.odd and self.chance(0.15):
            return self.pick("???", Raw("0x2"), Raw("03"), f"${{..{TP}}}", Raw("'2'"), Raw("1_0"))
        return self.pick(1, 2, 2, 3, 3, 4, None if self.odd and self.chance(0.4) else 2)

    def parallel(self, name: str) -> Any:
        if self.computed and self.chance(0.3):
            return self.pick(f"${{{name}}}", f"${{{name}}}", f"${{mul:${{{name}}},2}}")
        if self.odd and self.chance(0.3):
            return self.pick("???", f"${{oc.decode:${{oc.env:{ENVIRONMENT},4}}}}", f"${{oc.env:{ENVIRONMENT},4}}")
        return self.pick(1, 2, 4, 4, 8)

    def generation(self, is_child: bool) -> dict[str, Any]:
        generation: dict[str, Any] = {}
        if not is_child or self.chance(0.4):
            generation["backend"] = self.pick("megatron", "megatron", "megatron", "vllm")
        if not is_child or self.chance(0.4):
            generation["colocated"] = {"enabled": self.pick(True, False, False)}
        if self.chance(0.6):
            own: dict[str, Any] = {}
            if self.chance(0.6):
                own[TP] = self.env_or(1, 2, 4, 8)
            if self.chance(0.3):
                own[ETP] = self.pick(1, 2)
            if self.chance(0.3):
                own[EP] = self.pick(1, 2)
            if self.chance(0.3):
                own["model_overrides"] = self.model_overrides()
            if self.shelves and self.chance(0.2):
                own = {"<<": Raw(f"*{self.shelves[0]}"), **own}
            generation["mcore_generation_config"] = own or self.pick(None, {"buffer_size_gb": 10})
        return generation or {"backend": "megatron"}

    def opd(self, is_child: bool) -> dict[str, Any]:
        held: dict[str, Any] = {}
        if not is_child:
            held["enabled"] = self.pick(True, True, True, False)
            aliases = self.random.sample(["math", "code", "chat"], self.pick(1, 2, 2, 3))
            held["teacher_model_by_agent_name"] = {alias: self.pick(f"org/{alias}", "org/one") for alias in aliases}
        if self.chance(0.2):
            held["deduplicate_shared_teacher_checkpoints"] = self.pick(True, False)
        teachers: dict[str, Any] = {}
        if not is_child:
            teachers["enabled"] = True
        if self.chance(0.6):
            teachers["default_teacher_cfg"] = self.teacher()
        if self.chance(0.5):
            aliases = self.random.sample(["math", "code", "chat"], self.pick(1, 2))
            teachers["teacher_overrides"] = {alias: self.teacher() for alias in aliases}
            if self.chance(0.15):
                teachers["teacher_overrides"] = {aliases[0]: Anchored("T", self.teacher()), "other": Raw("*T")}
        if teachers:
            held["non_colocated_teachers"] = teachers
        return held or {"enabled": True}

    def teacher(self) -> dict[str, Any]:
        held: dict[str, Any] = {}
        if self.chance(0.7):
            held[TP] = self.env_or(1, 2, 4, 8)
        if self.chance(0.2):
            held[EP] = self.pick(1, 2)
        if self.chance(0.2):
            held["num_nodes"] = 2
        if self.chance(0.2):
            held["model_overrides"] = self.model_overrides()
        if self.chance(0.25):
            held["megatron_cfg_overrides"] = {"model_overrides": self.model_overrides()}
            if self.chance(0.2):
                held["megatron_cfg_overrides"] = {ETP: 2}
        return held or {"num_nodes": 2}


def arguments(random: Random, files: dict[str, str]) -> tuple[tuple[str, ...], tuple[str, ...], bool]:
    """Options, the files that are given, and whether all is a git checkout."""
    options: list[str] = []
    if random.random() < 0.4:
        options += ["--style", random.choice(["literal", "literal", "interpolation"])]
    if random.random() < 0.25:
        options += ["--target", "megatron-cfg"]
    if random.random() < 0.1:
        options += ["--tp", str(random.choice([2, 3]))]
    if random.random() < 0.05:
        options += ["--etp", str(random.choice([1, 2, 3]))]
    if random.random() < 0.05:
        options += ["--ep", str(random.choice([1, 2]))]
    if random.random() < 0.1:
        options += ["--runtime-shim"]
    given: tuple[str, ...] = (".",)
    in_git = random.random() < 0.12
    if random.random() < 0.2:
        given = tuple(random.sample(sorted(files), random.randint(1, len(files))))
    return tuple(options), given, in_git


# -- judging ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Seen:
    """A recipe as it is on the disk now."""

    #: The models under each supply of what is open, by the version of things.
    models: dict[Any, dict[str, Sizes]]
    #: The merged recipe, interpolations as they are; None where it does not load.
    merged: Any


@dataclass
class Case:
    """A tree and a command line."""

    files: dict[str, str]
    options: tuple[str, ...]
    given: tuple[str, ...]
    in_git: bool
    #: What the last run of the tool said.
    said: str = ""
    code: int | None = None
    after: dict[str, str] = field(default_factory=dict)

    def faults(self, root: Path) -> Iterator[tuple[str, str]]:
        """Kind and text of each fault."""
        for name, text in self.files.items():
            (root / name).parent.mkdir(exist_ok=True)
            (root / name).write_bytes(text.encode())
        if self.in_git:
            subprocess.run(["git", "init", "-q", str(root)], check=True)
        is_typed = "--target" in self.options
        released, new = (TYPED, NEW_TYPED) if is_typed else (RELEASED, NEW)
        before = {name: self.look(root, name, (released,)) for name in self.files}
        checked, _ = self.run(root, "--check")
        self.code, self.said = self.run(root)
        if self.code not in (0, 3):
            yield "traceback", f"exit {self.code}\n{self.said}"
            return
        self.after = {name: (root / name).read_bytes().decode() for name in self.files}
        changed = {name for name in self.files if self.after[name] != self.files[name]}
        concerned = set(self.files) if self.in_git or self.given == (".",) else set(self.given)
        if checked == 0 and (changed or self.code):
            yield "check", f"--check gives 0, the run {self.code} and changes {sorted(changed)}"
        for name in sorted(changed):
            if self.given != (".",) and name not in self.given:
                yield "outside", f"{name} was not given, and is changed"
            comments = [re.findall(r"# c\d+", text[name]) for text in (self.files, self.after)]
            if sorted(comments[0]) != sorted(comments[1]):
                yield "comments", f"{name}: comments {comments[0]} become {comments[1]}"
        if self.code == 0:
            for name in self.files if self.given == (".",) else self.given:
                if any(old in line.partition(" #")[0] for old in OLD for line in self.after[name].splitlines()):
                    yield "left", f"{name}: an old key is left, and not named"
        for name in sorted(concerned):
            if changed & self.layers(name):
                yield from self.compare(name, before[name], self.look(root, name, (released, new)), released, new)
        again, text = self.run(root)
        if any((root / name).read_bytes().decode() != self.after[name] for name in self.files):
            yield "again", f"a second run changes something again\n{text}"
        elif again != self.code:
            yield "again-code", f"a second run gives {again}, the first one {self.code}\n{text}"

    def run(self, root: Path, *more: str) -> tuple[int | None, str]:
        was = os.getcwd()
        os.chdir(root)
        try:
            result = CliRunner().invoke(app, [*self.options, *more, *self.given], env={"COLUMNS": "200"})
        finally:
            os.chdir(was)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            return None, "".join(traceback.format_exception(result.exception))
        return result.exit_code, result.output

    def layers(self, name: str) -> set[str]:
        seen, pending = set(), [name]
        while pending:
            here = pending.pop()
            if here in seen:
                continue
            seen.add(here)
            parents = (yaml.safe_load(self.files[here]) or {}).get("defaults", [])
            for parent in [parents] if isinstance(parents, str) else parents:
                pending.append(os.path.normpath(os.path.join(os.path.dirname(here), parent)))
        return seen & set(self.files)

    def look(self, root: Path, name: str, versions: tuple[Versions, ...]) -> Seen:
        try:
            tree = restated.load_config(root / name)
            merged: Any = OmegaConf.to_container(tree)
        except Exception:
            return Seen({}, None)
        assert isinstance(merged, dict)
        models: dict[Any, dict[str, Sizes]] = {}
        settings = [None, "2", "8"] if any(ENVIRONMENT in text for text in self.files.values()) else [None]
        for overrides, tp in itertools.product(self.supplies(merged), settings):
            try:
                with environment(tp), restated.registered(self.has_resolvers(name, merged)):
                    supplied = copy.deepcopy(tree)
                    restated.apply_overrides(supplied, overrides)
                    config: Any = OmegaConf.to_container(supplied, resolve=True)
            except Exception:
                continue
            assert isinstance(config, dict)
            for version, is_typed_by_master in itertools.product(versions, (True, False)):
                version = replace(version, master_config=is_typed_by_master)
                models[(*overrides, *([f"{ENVIRONMENT}={tp}"] if tp else [])), version] = dict(
                    restated.models_of(config, version)
                )
        return Seen(models, merged)

    def has_resolvers(self, name: str, merged: dict[str, Any]) -> bool:
        """A recipe without a section is started by no launcher: what inherits from it decides."""
        sections = (WITH_RESOLVERS | WITHOUT_RESOLVERS) & set(merged)
        if sections:
            return sections <= WITH_RESOLVERS
        heirs = (set(yaml.safe_load(self.files[heir]) or {}) for heir in self.files if name in self.layers(heir))
        return any((WITH_RESOLVERS | WITHOUT_RESOLVERS) & keys for keys in heirs)

    def supplies(self, merged: dict[str, Any]) -> Iterator[tuple[str, ...]]:
        """Ways to fill in what the recipe leaves open; none where another mapping than the policy's has no TP, or would
        have to be given what is assumed."""
        assumed = dict(zip(self.options, self.options[1:], strict=False))
        for path, other in restated.megatron_cfgs(merged, ""):
            if path != "policy" and other.get(TP, "???") == "???":
                return
            if path != "policy" and any(option in assumed for option in ("--etp", "--ep")):
                return
        cfg = merged.get("policy")
        cfg = cfg.get("megatron_cfg") if isinstance(cfg, dict) else None
        fixed: list[str] = []
        ways: list[tuple[str, ...]] = [()]
        if isinstance(cfg, dict):
            tp_known = True
            for key, option in ((TP, "--tp"), (ETP, "--etp"), (EP, "--ep")):
                is_open = cfg.get(key, "???") == "???"
                if not is_open:
                    continue
                if option in assumed:
                    fixed.append(f"++policy.megatron_cfg.{key}={assumed[option]}")
                    continue
                if key == TP:
                    tp_known = False
                    ways = [(f"++policy.megatron_cfg.{key}={size}",) for size in (4, 3)]
                elif cfg.get(key) == "???":
                    ways = [(*way, f"++policy.megatron_cfg.{key}={size}") for way in ways for size in (1, 3)]
                elif key == ETP and not tp_known and cfg.get(EP, 1) == 1:
                    ways += [(*way, f"++policy.megatron_cfg.{key}=5") for way in ways]
        for way in ways:
            yield (*fixed, *way)

    def compare(
        self, name: str, before: Seen, after: Seen, released: Versions, new: Versions
    ) -> Iterator[tuple[str, str]]:
        if before.merged is not None and after.merged is None:
            yield "load", f"{name} does not load any more"
            return
        if without_settings(before.merged) != without_settings(after.merged):
            yield "else", f"{name} has changed in more than settings"
        waits = self.waits(name, after)
        for (overrides, version), models in before.models.items():
            for later in (released, new):
                now = after.models.get((overrides, replace(later, master_config=version.master_config)))
                if now is None:
                    yield "start", f"{name} {overrides}: does not resolve any more"
                    continue
                if later is new and waits:
                    continue
                for model, sizes in models.items():
                    if sizes is None or (model == "generation" and self.is_pinned(after)):
                        continue
                    if now.get(model) != sizes:
                        which = "new Bridge" if later is new else "released"
                        how = "" if version.master_config else ", plain teachers"
                        yield "sizes", f"{name} {overrides} {model} ({which}{how}): {sizes} become {now.get(model)}"

    def waits(self, name: str, after: Seen) -> bool:
        """Whether the recipe still gets an old key, and need not be ready for a new Bridge yet: the tool has said so,
        or nobody asked."""
        is_given = self.given == (".",) or name in self.given
        return any(old in repr(after.merged) for old in OLD) and (self.code == 3 or not is_given)

    def is_pinned(self, after: Seen) -> bool:
        """Whether the run itself keeps the generation model without GTP, or does not build it."""
        colocated = after.merged["policy"]["generation"].get("colocated")
        is_copy = isinstance(colocated, dict) and colocated.get("enabled") is True
        if "distillation" in after.merged and not is_copy:
            return True  # which that algorithm refuses
        return ("--runtime-shim" in self.options and is_copy) or "megatron-cfg" in self.options


@contextlib.contextmanager
def environment(tp: str | None) -> Iterator[None]:
    """As a run may find it."""
    if tp is not None:
        os.environ[ENVIRONMENT] = tp
    try:
        yield
    finally:
        os.environ.pop(ENVIRONMENT, None)


def without_settings(node: Any) -> Any:
    """Without settings and what holds nothing else; null and empty overrides are the same."""
    if isinstance(node, dict):
        found = {}
        for key, value in node.items():
            value = without_settings(value)
            if key in SETTINGS:
                continue
            if key in ("model_overrides", "megatron_cfg_overrides", "default_teacher_cfg", "teacher_overrides"):
                continue
            if key in ("mcore_generation_config", "non_colocated_teachers", "nested") and not value:
                continue
            found[key] = value
        return found
    return [without_settings(each) for each in node] if isinstance(node, list) else node


# -- making smaller --------------------------------------------------------------------------------


def kinds(case: Case) -> dict[str, str]:
    folder = Path(tempfile.mkdtemp(prefix="fuzz"))
    try:
        return dict(reversed(list(case.faults(folder))))
    except Exception:
        return {"judge": traceback.format_exc()}
    finally:
        shutil.rmtree(folder)


def shrink(case: Case, kind: str, seconds: float) -> Case:
    until = time.monotonic() + seconds

    def still(smaller: Case) -> bool:
        try:
            for text in smaller.files.values():
                if not isinstance(yaml.safe_load(text), dict):
                    return False
        except yaml.YAMLError:
            return False
        return kind in kinds(smaller)

    is_smaller = True
    while is_smaller and time.monotonic() < until:
        is_smaller = False
        for smaller in smaller_ones(case):
            if time.monotonic() > until:
                break
            if still(smaller):
                case, is_smaller = smaller, True
                break
    kinds(case)
    return case


def smaller_ones(case: Case) -> Iterator[Case]:
    for name in case.files:
        given = tuple(each for each in case.given if each != name)
        if given and len(case.files) > 1:
            yield Case({key: text for key, text in case.files.items() if key != name}, case.options, given, case.in_git)
    if case.in_git:
        yield Case(case.files, case.options, case.given, False)
    for index, option in enumerate(case.options):
        if option.startswith("--"):
            end = index + (1 if option == "--runtime-shim" else 2)
            yield Case(case.files, case.options[:index] + case.options[end:], case.given, case.in_git)
    for name, text in case.files.items():
        lines = text.splitlines(keepends=True)
        for size in (8, 4, 2, 1):
            for start in range(0, len(lines), size):
                less = "".join(lines[:start] + lines[start + size :])
                if less and size < len(lines):
                    yield Case({**case.files, name: less}, case.options, case.given, case.in_git)
        for found in re.finditer(r"[\w]+: [^,{}\n]+, |, [\w]+: [^,{}\n]+(?=\})|  # c\d+", text):
            less = text[: found.start()] + text[found.end() :]
            yield Case({**case.files, name: less}, case.options, case.given, case.in_git)


def case_of(seed: int) -> Case:
    random = Random(seed)
    files = Author(random).tree()
    return Case(files, *arguments(random, files))


def show(seed: int, case: Case, kind: str, text: str) -> str:
    lines = [f"===== seed {seed}: {kind}: {text}", f"gtp-migrate {' '.join((*case.options, *case.given))}"]
    lines += ["(in a git checkout)"] if case.in_git else []
    for name, content in case.files.items():
        lines += [f"--- {name}", content]
        if case.after.get(name, content) != content:
            lines += [f"+++ {name} after", case.after[name]]
    lines += [f"exit {case.code}", case.said]
    return "\n".join(lines)


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000_000)
    parser.add_argument("--minutes", type=float, default=1)
    parser.add_argument("--shrink-seconds", type=float, default=20)
    parser.add_argument("--each-kind", type=int, default=3, help="Shrink and print so many faults of each kind.")
    options = parser.parse_args(argv)
    until = time.monotonic() + options.minutes * 60
    count, codes, found = 0, Counter[Any](), Counter[str]()
    for seed in itertools.count(options.seed):
        if time.monotonic() > until:
            break
        case = case_of(seed)
        count += 1
        for kind in kinds(case):
            found[kind] += 1
            if found[kind] <= options.each_kind:
                smaller = shrink(case_of(seed), kind, options.shrink_seconds)
                print(show(seed, smaller, kind, kinds(smaller).get(kind, "")), flush=True)
        codes[case.code] += 1
    print(f"seeds {options.seed} to {options.seed + count - 1}: exit codes {dict(codes)}, faults {dict(found)}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
