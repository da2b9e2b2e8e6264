"""Random trees of recipes, for Hypothesis: what people write, and how oddly they may write it.

Every comment in them reads `# c<number> …`, so that a test can count comments without a parser; a `#` in a
value never does.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

TP, ETP, EP = "tensor_model_parallel_size", "expert_tensor_parallel_size", "expert_model_parallel_size"
PP, CP = "pipeline_model_parallel_size", "context_parallel_size"
OLD = ("gtp_weight_remat_size", "expert_gtp_weight_remat_size")
NEW = ("tensor_parallel_num_weight_shards", "expert_tensor_parallel_num_weight_shards")
SETTINGS = (*OLD, *NEW)

#: A variable that is not set: only the default beside it counts.
ENVIRONMENT = "GTP_MIGRATE_TEST_TP"


@dataclass
class Map:
    """A mapping; its entries in the order they are written."""

    entries: list[tuple[str, Node]] = field(default_factory=list)
    anchor: str | None = None
    #: Written over several lines, whatever is drawn.
    block: bool = False


@dataclass
class Seq:
    """A list."""

    items: list[Node]


@dataclass
class Text:
    """A block scalar."""

    lines: list[str]


#: A `str` is a scalar or an alias, as it is written in the file.
Node = Map | Seq | Text | str


@dataclass
class RecipeTree:
    """File contents by their path below some root."""

    files: dict[str, bytes]

    def __repr__(self) -> str:
        return "\n".join(f"=== {name}\n{data!r}\n{data.decode()}" for name, data in self.files.items())


class _Author:
    """Writes one tree. Every draw of 0 is the plain choice, so that examples shrink to plain files."""

    def __init__(self, draw: Callable[[Any], Any]) -> None:
        self.draw = draw
        self.comments = 0

    def upto(self, most: int) -> int:
        return int(self.draw(st.integers(0, most)))

    def chance(self, tenths: int) -> bool:
        return self.upto(9) >= 10 - tenths

    def one_of(self, *choices: Any) -> Any:
        return choices[self.upto(len(choices) - 1)]

    def comment(self) -> str:
        self.comments += 1
        text = self.one_of("why", "gtp_weight_remat_size: 3", "'quoted', {x: 1}", "ünïcode")
        return f"# c{self.comments} {text}"

    # -- what a file says ------------------------------------------------------------------------------

    def tree(self) -> RecipeTree:
        self.odd = self.chance(2)
        self.plain = self.chance(3)
        count = self.one_of(2, 3, 4, 1, 5, 2, 3, 8)
        names: list[str] = []
        files = {}
        for number in range(count):
            name = self.one_of("", "", "sub/", "sub/deep/") + f"r{number}.yaml"
            parents = []
            if names:
                for _ in range(self.one_of(1, 1, 1, 2, 0)):
                    parent = names[self.upto(len(names) - 1)]
                    if parent not in parents:
                        parents.append(parent)
            content = self.recipe(name, parents)
            files[name] = self.file(content)
            names.append(name)
        return RecipeTree(files)

    def recipe(self, name: str, parents: list[str]) -> Map:
        root = Map(block=True)
        written = [self.path(os.path.relpath(parent, os.path.dirname(name) or ".")) for parent in parents]
        if len(written) == 1 and not self.chance(2):
            root.entries.append(("defaults", written[0]))
        elif written:
            root.entries.append(("defaults", Seq(list(written))))
        self.anchors: list[str] = []
        self.override_anchors: list[str] = []
        self.size_anchors: list[str] = []
        self.child = bool(parents)
        if not parents or self.chance(2):
            root.entries.append(("gtp", str(1 + self.upto(3))))
            root.entries.append(("tp_all", str(1 + self.upto(3))))
        if self.chance(2):
            root.entries.append(("cluster", Map([("gpus_per_node", "8"), ("num_nodes", str(1 + self.upto(3)))])))
        if self.chance(1):
            shared = Map([(OLD[0], self.size()), ("moe_router_dtype", "fp32")], anchor="SHARED")
            self.override_anchors.append("SHARED")
            root.entries.append(("shared", shared))
        if self.chance(1):
            root.entries.append(("notes", self.decoy()))
        holders = [self.one_of("policy", "policy", "policy", "value")]
        if self.chance(4):
            holders.append(self.one_of("teacher", "my_model", "teacher", "nested", "list"))
        for holder in holders:
            root.entries.append(self.section(holder))
        if self.chance(1):
            root.entries.append(("logger", Map([("wandb", "false"), (OLD[0], "7")])))
        return root

    def path(self, path: str) -> str:
        path = self.one_of("", "./", "") + path
        return str(self.one_of("{}", '"{}"', "'{}'").format(path))

    def decoy(self) -> Node:
        return self.one_of(
            f'"{OLD[0]}: 3"',
            f"see {OLD[0]} # not a comment".replace(" #", "#"),
            Text([f"{OLD[0]}: 3", "", f"  {OLD[1]}: 4", "# no comment"]),
            Map([(OLD[1], "5"), ("model_overrides", Map([(OLD[0], "6")]))]),
        )

    def section(self, holder: str) -> tuple[str, Node]:
        section = Map()
        if holder in ("policy", "teacher", "value") and self.child and self.chance(1):
            section.entries.append(("_override_", "true"))
        if self.chance(3):
            section.entries.append(("precision", self.one_of("bf16", '"bf16"', "'fp8'")))
        section.entries.append(("megatron_cfg", self.megatron_cfg(holder)))
        if self.chance(2):
            section.entries.append(("dtensor_cfg", Map([(TP, "1"), (OLD[0], "9")] if self.chance(3) else [(TP, "1")])))
        if self.chance(1):
            section.entries.append(("note", self.decoy()))
        if holder == "nested":
            return "outer", Map([("inner", section)])
        if holder == "list":
            if self.chance(5):
                section.entries.insert(0, ("name", "one"))
            return "teachers", Seq([section])
        return holder, section

    def megatron_cfg(self, holder: str) -> Node:
        merge = None
        if self.anchors and self.chance(7):
            if self.chance(2):
                return f"*{self.anchors[0]}"
            merge = self.anchors[0]
        elif holder in ("teacher", "my_model") and self.chance(1):
            return "${policy.megatron_cfg}"
        cfg = Map()
        if self.chance(3):
            cfg.entries.append(("enabled", "true"))
        if self.chance(5 if self.child else 8):
            cfg.entries.append((TP, self.parallel()))
        if self.chance(2):
            cfg.entries.append((EP, self.one_of("1", "4", "2")))
        if self.chance(3):
            cfg.entries.append((ETP, self.one_of(self.parallel(), self.parallel(), "null")))
        if self.chance(1):
            cfg.entries.append((PP, self.one_of("2", "1")))
        if self.chance(2):
            cfg.entries.append(("optimizer", Map([("lr", "1.0e-6"), ("betas", "[0.9, 0.95]")])))
        if self.chance(7):
            place = 0 if self.chance(3) else len(cfg.entries)
            overrides = self.overrides(cfg)
            cfg.entries.insert(place, ("model_overrides", overrides))
        if self.upto(29) == 29:
            axis = self.upto(1)
            cfg.entries.append((NEW[axis], self.count(axis, cfg, dict(cfg.entries).get("model_overrides", Map()))))
        if merge:
            cfg.entries.insert(0 if not self.chance(2) else len(cfg.entries), ("<<", f"*{merge}"))
        elif not cfg.entries:
            cfg.entries.append(("enabled", "true"))
        if not merge and self.chance(4):
            cfg.anchor = "BASE" if not self.anchors else f"BASE_{len(self.anchors)}"
            self.anchors.append(cfg.anchor)
        return cfg

    def parallel(self) -> str:
        kind = self.upto(19)
        if kind < 14:
            return str(self.one_of(4, 2, 1, 8, 3))
        if kind < 16:
            return "${tp_all}"
        if kind < 17:
            return f"${{oc.decode:${{oc.env:{ENVIRONMENT},4}}}}"
        if kind < 18:
            return "${mul:${tp_all},2}"
        if self.odd:
            return str(self.one_of("???", f"${{oc.env:{ENVIRONMENT},4}}", "${nowhere}", "0", "'2'"))
        return "2"

    def size(self) -> str:
        kind = self.upto(29)
        if kind < 18:
            return str(self.one_of(3, 2, 1, 4, 5))
        if kind < 22:
            return str(self.one_of("null", "null", "~", ""))
        if kind < 25:
            return str(self.one_of("${gtp}", "${mul:${gtp},2}"))
        if kind < 26:
            return str(self.one_of("0x2", "+3", "02"))
        if kind < 27 and self.size_anchors:
            return f"*{self.size_anchors[0]}"
        if kind < 28 and not self.size_anchors:
            self.size_anchors.append("SIZE")
            return "&SIZE 2"
        if self.odd:
            return str(self.one_of("???", "0", "-1", "true", "2.5", '"2"', "x${gtp}", "${nowhere}", "[1, 2]"))
        return "2"

    def count(self, axis: int, cfg: Map, overrides: Node) -> str:
        """A number of shards for a file that somebody began to migrate: mostly what its old size comes to."""
        size = dict(overrides.entries).get(OLD[axis]) if isinstance(overrides, Map) else None
        parallel = dict(cfg.entries).get((TP, ETP)[axis])
        if not self.odd:
            if isinstance(size, str) and size.isdigit() and isinstance(parallel, str) and parallel.isdigit():
                return str(int(size) * int(parallel))
            return str(int(parallel) * 2 if isinstance(parallel, str) and parallel.isdigit() else 24)
        return str(self.one_of("${mul:2,${..tensor_model_parallel_size}}", "null", "12", "24"))

    def overrides(self, cfg: Map) -> Node:
        merge = None
        if self.override_anchors and self.chance(5):
            if self.chance(5):
                return f"*{self.override_anchors[0]}"
            merge = self.override_anchors[0]
        if self.chance(1):
            choices = ["null", "{}", ""]
            if self.odd:
                choices += ["${shared}", "${nowhere}", "???", "3"]
            return str(self.one_of(*choices))
        overrides = Map()
        kind = self.upto(9)
        if kind < 8:
            overrides.entries.append((OLD[0], self.size()))
        if kind > 4:
            overrides.entries.append((OLD[1], self.size()))
        if self.chance(3):
            other = self.one_of(("moe_router_dtype", "fp32"), ("extra", Map([("a", "1"), (OLD[0], "8")])))
            overrides.entries.insert(self.upto(len(overrides.entries)), other)
        if self.upto(19) == 19:
            axis = self.upto(1)
            overrides.entries.append((NEW[axis], self.count(axis, cfg, overrides)))
        if merge:
            overrides.entries.insert(0, ("<<", f"*{merge}"))
        elif self.chance(2):
            overrides.anchor = f"OV_{len(self.override_anchors)}"
            self.override_anchors.append(overrides.anchor)
        return overrides

    # -- how it is written -----------------------------------------------------------------------------

    def file(self, root: Map) -> bytes:
        self.lines: list[str] = []
        self.step = 2 if self.plain else self.one_of(2, 2, 2, 4, 3, 1)
        if not self.plain and self.chance(1):
            self.lines.append("---")
        self.block(root, "")
        if not self.plain and self.chance(2):
            self.lines += self.one_of([""], [self.comment()], ["", self.comment(), ""])
        text = "\n".join(self.lines)
        if self.plain or not self.chance(2):
            text += "\n"
        if not self.plain:
            if self.chance(2):
                text = text.replace("\n", "\r\n")
            if self.chance(1):
                text = "\ufeff" + text
        return text.encode()

    def block(self, node: Map, indent: str, first: str | None = None) -> None:
        """Writes a mapping over several lines, the first of which may follow a dash."""
        for key, value in node.entries:
            self.entry(key, value, indent, first)
            first = None

    def entry(self, key: str, value: Node, indent: str, first: str | None) -> None:
        decoration = 0 if self.plain else self.upto(29)
        if first is None:
            if decoration in (20, 21, 22):
                self.lines.append(indent + self.comment())
            elif decoration == 23:
                self.lines += [indent + self.comment(), indent + self.comment()]
            elif decoration == 24:
                self.lines.append(self.comment())
            elif decoration == 25:
                self.lines += ["", indent + self.comment()]
            elif decoration == 26:
                self.lines.append("")
        start = indent if first is None else first
        quote = {18: '"', 19: "'"}.get(decoration, "") if key != "<<" else ""
        start += f"{quote}{key}{quote}:"
        tail = {
            15: lambda: f"  {self.comment()}",
            16: lambda: f" {self.comment()}",
            17: lambda: f"     {self.comment()}",
            20: lambda: f"  {self.comment()}",
            27: lambda: "   ",
        }.get(decoration, lambda: "")()
        gap = "   " if decoration == 28 else " "
        if isinstance(value, str):
            if not value:
                self.lines.append(start + tail)
                return
            if "${" in value and self.chance(5):
                value = self.one_of(f'"{value}"', f"'{value}'")
            self.lines.append(f"{start}{gap}{value}{tail}")
        elif isinstance(value, Text):
            self.lines.append(f"{start} {self.one_of('|', '>', '|-')}")
            self.lines += [f"{indent}  {line}" if line else "" for line in value.lines]
        elif isinstance(value, Seq):
            self.sequence(value, start, indent, tail)
        else:
            anchor = f" &{value.anchor}" if value.anchor else ""
            if value.entries and not value.block and not self.plain and self.chance(2) and _fits(value):
                self.flow_entry(value, start + anchor + gap, indent, tail)
            else:
                self.lines.append(start + anchor + tail)
                self.block(value, indent + " " * self.step)

    def sequence(self, value: Seq, start: str, indent: str, tail: str) -> None:
        if all(isinstance(item, str) for item in value.items) and self.chance(3):
            self.lines.append(f"{start} [{', '.join(str(item) for item in value.items)}]{tail}")
            return
        self.lines.append(start + tail)
        dash = indent + self.one_of(" " * self.step, "") + "- "
        for item in value.items:
            if isinstance(item, Map):
                self.block(item, " " * len(dash), dash)
            else:
                assert isinstance(item, str)
                self.lines.append(dash + item)

    def flow_entry(self, value: Map, start: str, indent: str, tail: str) -> None:
        if not self.chance(2):
            self.lines.append(start + self.flow(value) + tail)
            return
        self.lines.append(start + "{")
        inner = indent + " " * self.step
        last = len(value.entries) - 1
        for index, (key, each) in enumerate(value.entries):
            comma = "," if index < last or self.chance(3) else ""
            comment = f"  {self.comment()}" if self.chance(1) else ""
            self.lines.append(f"{inner}{key}: {self.flow(each)}{comma}{comment}")
        self.lines.append(inner + "}" + tail)

    def flow(self, value: Node) -> str:
        if isinstance(value, str):
            return f'"{value}"' if "$" in value or value == "???" else value or "null"
        assert isinstance(value, Map)
        pad, comma = self.one_of(("", ", "), (" ", ", "), ("", ","), (" ", " , "))
        anchored = [
            f"{key}: {f'&{each.anchor} ' if isinstance(each, Map) and each.anchor else ''}{self.flow(each)}"
            for key, each in value.entries
        ]
        return "{" + pad + comma.join(anchored) + pad + "}"


def _fits(node: Node) -> bool:
    """Whether a mapping can be written in flow style."""
    if isinstance(node, Map):
        return all(_fits(value) for _, value in node.entries)
    return isinstance(node, str) and "# " not in node


@st.composite
def trees(draw: Callable[[Any], Any]) -> RecipeTree:
    """A tree of one to eight recipes in up to three folders."""
    return _Author(draw).tree()
