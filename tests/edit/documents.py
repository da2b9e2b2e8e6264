"""Random YAML documents, written in every style there is, and random changes to them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import yaml
from hypothesis import strategies as st

from gtp_migrate.plan.changes import Add, Change, Drop, Move, Replace, Spot

from .texts import EXPERT_NEW, EXPERT_OLD, NEW, OLD

NEW_KEYS = {OLD: NEW, EXPERT_OLD: EXPERT_NEW}
OVERRIDES = "model_overrides"

_FLOW_SCALARS = [
    "1",
    "0x1F",
    "1.0e-5",
    "yes",
    "~",
    "word",
    "'it''s # not'",
    '"a \\"b\\" # \\u00e4"',
    "'${a.b}'",
    "学習",
    '"🚀"',
]
_BLOCK_SCALARS = [*_FLOW_SCALARS, "", "${a.b}", "two words", "x#y", "http://host:80/a?b", "!!str 5"]
_TEXTS = ["|", "|-", ">", ">-", "|+"]
_VALUES: list[Any] = [
    "12",
    "null",
    "${mul:3,${..a}}",
    {"x": 1, "y": {"deep": ["yes", 1e-05, {"z": None}]}},
    {},
    {"e: f": "#"},
]


@st.composite
def documents(draw: st.DrawFn) -> str:
    """The text of a file."""
    return _Writer(draw).file()


class _Writer:
    def __init__(self, draw: st.DrawFn) -> None:
        self.draw = draw
        self.count = 0
        #: Anchors of whole mappings and of scalars that stand further up.
        self.mappings: list[str] = []
        self.scalars: list[str] = []

    def maybe(self, often: int = 3) -> bool:
        return self.draw(st.integers(0, often)) == often

    def one_of(self, choices: list[Any]) -> Any:
        return self.draw(st.sampled_from(choices))

    def next(self) -> int:
        self.count += 1
        return self.count

    def file(self) -> str:
        lines = [*(self.one_of([[], [], ["---"], ["# top", "--- # start"]]))]
        if self.maybe(6):
            lines.append(self.flow_mapping(3))
        else:
            lines += self.mapping("", 3)
        lines += self.one_of([[], [], [], ["", "# end"], ["..."], ["  # end", "...", "# behind"]])
        newline = self.one_of(["\n", "\n", "\r\n"])
        text = "".join(line + (newline if self.maybe(1) or newline == "\r\n" else "\n") for line in lines)
        if self.maybe():
            text = text.removesuffix("\n").removesuffix("\r")
        return ("\ufeff" if self.maybe(5) else "") + text

    # -- block style -----------------------------------------------------------------------------------

    def comments(self, indent: str) -> list[str]:
        lines = [f"{indent}# comment {self.next()}"] if self.maybe() else []
        return [*lines, ""] if self.maybe(8) else lines

    def behind(self) -> str:
        return f"{self.one_of([' ', '  '])}# comment {self.next()}" if self.maybe() else ""

    def key(self) -> str:
        name = f"k{self.next()}"
        return str(self.one_of([name, name, name, f"'{name}'", f'"{name} ü"']))

    def mapping(self, indent: str, depth: int) -> list[str]:
        """The lines of a mapping."""
        lines: list[str] = []
        if self.mappings and self.maybe(4):
            lines.append(f"{indent}<<: {self.merged()}{self.behind()}")
        size = self.draw(st.integers(1, 4 if depth > 1 else 2))
        keys = [self.key() for _ in range(size)]
        if depth and self.maybe(1):
            keys.insert(self.draw(st.integers(0, size)), self.one_of([OVERRIDES, OVERRIDES, f'"{OVERRIDES}"']))
        for key in keys:
            lines += self.comments(indent)
            lines += self.overrides(indent, key) if OVERRIDES in key else self.entry(indent, key, depth)
        return lines

    def merged(self) -> str:
        name = self.one_of(self.mappings)
        return str(self.one_of([f"*{name}", f"[*{name}]"]))

    def entry(self, indent: str, key: str, depth: int) -> list[str]:
        kind = self.draw(st.integers(0, 11))
        anchor = f"&a{self.next()} " if self.maybe(4) else ""
        inner = indent + " " * self.draw(st.integers(1, 4))
        head = f"{indent}{key}{self.one_of([':', ':', ' :'])} {anchor}"
        name = anchor.strip("& ")
        if depth and kind < 4:
            lines = [head.rstrip() + self.behind(), *self.mapping(inner, depth - 1)]
            self.mappings += [name] if anchor else []
        elif depth and kind < 6:
            lines = [f"{indent}{key}:{self.behind()}", *self.items(self.one_of([indent, inner]), depth - 1)]
        elif depth and kind < 8:
            lines = [head + self.flow_mapping(depth - 1) + self.behind()]
            self.mappings += [name] if anchor else []
        elif kind == 8:
            lines = [
                f"{indent}{key}: {self.one_of(_TEXTS)}",
                f"{inner}text # no comment",
                *([""] if self.maybe() else []),
            ]
        elif kind == 9:
            lines = [f"{indent}? {key}", f"{indent}: {self.scalar(_BLOCK_SCALARS)}{self.behind()}"]
        elif kind == 10:
            lines = [f"{indent}{key}: {self.one_of(['two', chr(39) + 'two'])}", f"{inner}lines"]
            lines[1] += "'" if "'" in lines[0].partition(": ")[2] else ""
            lines[1] += self.behind()
        else:
            lines = [f"{indent}{key}: {self.scalar(_BLOCK_SCALARS)}{self.behind()}"]
        return lines

    def scalar(self, choices: list[str]) -> str:
        if self.scalars and self.maybe(6):
            return f"*{self.one_of(self.scalars)} "
        value = str(self.one_of(choices))
        if self.maybe(8) and value and value[0] not in "&!":
            self.scalars.append(f"s{self.next()}")
            return f"&{self.scalars[-1]} {value}"
        return value

    def items(self, indent: str, depth: int) -> list[str]:
        lines = []
        for _ in range(self.draw(st.integers(1, 2))):
            lines += self.comments(indent)
            if depth and self.maybe(1):
                inner = indent + " " * self.one_of([2, 4])
                first, *others = [line for line in self.mapping(inner, depth - 1) if line.strip()[:1] not in ("", "#")]
                lines += [indent + "-" + first[len(indent) + 1 :], *others]
            else:
                lines.append(f"{indent}- {self.scalar(_BLOCK_SCALARS)}{self.behind()}")
        return lines

    def overrides(self, indent: str, key: str) -> list[str]:
        """A `model_overrides` with a setting or two."""
        anchor = self.one_of(["", "", "", "", f"&a{self.next()} "])
        if self.maybe():
            lines = [f"{indent}{key}: {anchor}{self.flow_overrides()}{self.behind()}"]
        else:
            lines = [f"{indent}{key}: {anchor}".rstrip() + self.behind()]
            inner = indent + " " * self.draw(st.integers(1, 4))
            for name in self.settings():
                lines += self.comments(inner)
                lines += self.setting(inner, name)
        self.mappings += [anchor.strip("& ")] if anchor else []
        return lines

    def settings(self) -> list[str]:
        names = self.one_of([[OLD], [OLD], [EXPERT_OLD], [OLD, EXPERT_OLD]])
        return list(self.draw(st.permutations([*names, *(self.key() for _ in range(self.draw(st.integers(0, 2))))])))

    def setting(self, indent: str, name: str) -> list[str]:
        quote = "" if name[0] in "'\"" else self.one_of(["", "", "", "'", '"'])
        name = quote + name + quote
        value = self.one_of(["3", "3", "'${a.b}'", "~", "", f"&s{self.next()} 3"])
        if value[:1] == "&" and self.maybe():
            self.scalars.append(value[1:].partition(" ")[0])
        if self.maybe(6):
            return [f"{indent}? {name}", f"{indent}: {value}{self.behind()}"]
        if self.maybe(6) and value:
            return [f"{indent}{name}:", f"{indent}  {value}{self.behind()}"]
        return [f"{indent}{name}: {value}{self.behind()}"]

    # -- flow style ------------------------------------------------------------------------------------

    def flow_mapping(self, depth: int) -> str:
        entries = [self.flow_entry(depth) for _ in range(self.draw(st.integers(0, 3)))]
        if self.maybe(2):
            entries.insert(0, f"{OVERRIDES}: {self.flow_overrides()}")
        return self.braces(entries)

    def flow_entry(self, depth: int) -> str:
        value = self.flow_mapping(depth - 1) if depth and self.maybe(2) else self.scalar(_FLOW_SCALARS)
        if self.maybe(5):
            value = f"[{value}, {self.one_of(_FLOW_SCALARS)}]"
        return f"{self.key()}: {value}"

    def flow_overrides(self) -> str:
        return self.braces(
            [f"{name}: {self.one_of(['3', chr(34) + '${a.b}' + chr(34), '~'])}" for name in self.settings()]
        )

    def braces(self, entries: list[str]) -> str:
        blank = self.one_of(["", "", " "])
        comma = self.one_of([", ", ", ", ",", self.comma_and_comment()])
        end = self.one_of(["", "", ","]) if entries else ""
        return f"{{{blank}{comma.join(entries)}{end}{blank}}}"

    def comma_and_comment(self) -> str:
        """The end of a line and the start of the next one, deeper than any block."""
        return f",{self.behind()}\n{'':24}"


# -- changes -------------------------------------------------------------------------------------------


@dataclass
class Composed:
    """A text as PyYAML's nodes, with all that can be changed in it."""

    loader: Any
    root: Any
    #: Each entry with an old key: the mapping, its key, and the key and the mapping that this mapping is under.
    settings: list[tuple[Any, Any, Any, Any]] = field(default_factory=list)
    #: Each mapping that is written out, with its path.
    mappings: list[tuple[tuple[str | int, ...], Any]] = field(default_factory=list)


def compose(content: str, loader_class: Any) -> Composed:
    loader = loader_class(content.removeprefix("\ufeff"))
    composed = Composed(loader, loader.get_single_node())
    seen: set[int] = set()
    waiting: list[tuple[Any, tuple[str | int, ...], Any, Any]] = [(composed.root, (), None, None)]
    while waiting:
        node, path, home, owner = waiting.pop(0)
        if id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, yaml.MappingNode):
            composed.mappings.append((path, node))
            for key, value in node.value:
                if key.value in NEW_KEYS:
                    composed.settings.append((node, key, home, owner))
                if key.value != "<<":
                    waiting.append((value, (*path, key.value), key, node))
        elif isinstance(node, yaml.SequenceNode):
            waiting += [(value, (*path, index), None, None) for index, value in enumerate(node.value)]
    return composed


def changes(draw: st.DrawFn, composed: Composed) -> list[Change]:
    """Changes as planning asks for them: each entry once, what is added nowhere twice."""
    made: list[Change] = []
    for _, key, home, _ in composed.settings:
        spot = Spot(key.start_mark.index, key.start_mark.line + 1, key.start_mark.column + 1)
        value = draw(st.sampled_from(["12", "null", "${mul:3,${..a}}", None]))
        kinds = ["replace", "nothing"] + (
            ["move", "move", "move", "drop"] if home is not None and home.value == OVERRIDES else []
        )
        kind = draw(st.sampled_from(kinds))
        if kind == "replace":
            made.append(Replace(spot, key.value, NEW_KEYS[key.value], value))
        elif kind == "move":
            made.append(Move(spot, key.value, NEW_KEYS[key.value], value, keep_husk=draw(st.booleans())))
        elif kind == "drop":
            made.append(Drop(spot, key.value, keep_husk=draw(st.booleans())))
    for number in range(draw(st.integers(0, 3))):
        path, mapping = draw(st.sampled_from(composed.mappings))
        names = [key.value for key, _ in mapping.value if key.value != "<<"]
        after = draw(st.sampled_from([None, *names, "nowhere"]))
        missing = draw(st.sampled_from([(), (), ("new",), ("new", "newer")]))
        made.append(Add((*path, *missing), f"added {number}", draw(st.sampled_from(_VALUES)), after))
    return list(draw(st.permutations(made)))
