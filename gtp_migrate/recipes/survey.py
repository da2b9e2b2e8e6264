"""The first look at all given files: which of them mention a setting, and who inherits from whom.

Most runs find nothing to do, and most files of a tree matter to none: this costs little more than reading
the bytes, and imports no YAML parser.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Set
from dataclasses import dataclass, field

from gtp_migrate.problems import Place, Problem
from gtp_migrate.recipes.discover import Folder, Found, discover, recipe_id
from gtp_migrate.recipes.glance import Glance, glance

_CHUNK = 1 << 16

#: Called with what is being done, how much is done, and how much there is (0: not known).
Progress = Callable[[str, int, int], None]


@dataclass
class Survey:
    """What the bytes of the given files show."""

    #: Folder by folder, the files that could be read and what a glance shows of each.
    folders: list[tuple[Folder, list[tuple[str, Glance]]]] = field(default_factory=list)
    #: The bytes of those that mention a setting, by recipe id.
    data: dict[str, bytes] = field(default_factory=dict)
    #: Files that were found but are to be left alone: excluded, or ignored by git.
    set_aside: list[Found] = field(default_factory=list)
    #: Those of them that git ignores; not looked for where no file mentions a setting.
    ignored: list[Found] = field(default_factory=list)
    #: Patterns of `--exclude` that name none of the files.
    unmatched: tuple[str, ...] = ()
    #: Links to folders outside of the given ones, as shown, and where they lead.
    not_followed: list[tuple[str, str]] = field(default_factory=list)
    #: What runs have put down that were stopped between two files, each by one name.
    unfinished: list[str] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    #: Those of them that are about a file, and not about a folder.
    unreadable: list[Problem] = field(default_factory=list)

    @property
    def count(self) -> int:
        """How many files were read."""
        return sum(len(files) for _, files in self.folders)

    def files(self) -> Iterator[tuple[Found, Glance]]:
        """Every file that could be read, with what a glance shows."""
        for folder, files in self.folders:
            for name, seen in files:
                yield folder.found(name), seen

    def behind_links(self) -> Iterator[str]:
        """The files that links among the given ones lead to: others may inherit from them where they really are."""
        for folder, files in self.folders:
            for name, _ in files if folder.links else ():
                if name in folder.links:
                    yield folder.found(name).real

    def inherits_from_outside(self) -> bool:
        """Whether a file may inherit a setting from one that was not given; the bytes of those are looked at."""
        known = {f"{folder.path}/{name}" for folder, files in self.folders for name, _ in files}
        pending = [
            (folder.path, defaults)
            for folder, files in self.folders
            for defaults in {seen.defaults for _, seen in files}
        ]
        while pending:
            folder, parents = pending.pop()
            if parents is None:
                return True
            for path in {recipe_id(os.path.join(folder, each)) for each in parents} - known:
                known.add(path)
                if not os.path.exists(path):
                    continue
                seen = _glance_at(path)
                if seen is None or seen.old or seen.new:
                    return True
                pending.append((os.path.dirname(path), seen.defaults))
        return False


def _glance_at(path: str) -> Glance | None:
    """A glance at a file; None where it cannot be read."""
    if not os.path.isfile(path):
        return None
    try:
        return glance(read_bytes(path))
    except OSError:
        return None


def survey(
    paths: Iterable[str],
    exclude: tuple[str, ...] = (),
    progress: Progress = lambda *_: None,
    no_ignore: bool = False,
) -> Survey:
    """Reads all files once.

    Args:
        paths: files and folders.
        exclude: patterns of files to set aside, by gitignore's rules; see `ignore.Excluded`.
        progress: called now and then.
        no_ignore: take also the files that git ignores. A file among `paths` is taken in any case.

    Raises:
        OSError: one of the paths does not exist.
    """
    paths = tuple(paths)
    result = Survey()

    def unreadable(path: str, error: OSError) -> None:
        what = f"cannot be read ({error.strerror})"
        result.problems.append(Problem(Place(path), what, "make it readable and run again"))

    stopped: list[str] = []
    folders = list(discover(paths, unreadable, lambda *link: result.not_followed.append(link), stopped.append))
    result.unfinished += {os.path.realpath(path): path for path in stopped}.values()
    excluded, result.unmatched = _excluded(exclude, paths, folders) if exclude else (frozenset[str](), ())
    done = 0
    for folder in folders:
        files = []
        prefix = folder.path + "/"
        for name in folder.names:
            path = prefix + name
            if path in excluded:
                result.set_aside.append(folder.found(name))
                continue
            try:
                data = read_bytes(path)
            except OSError as error:
                unreadable(folder.prefix + name, error)
                result.unreadable.append(result.problems[-1])
                continue
            seen = glance(data)
            if seen.old or seen.new:
                result.data[path] = data
            files.append((name, seen))
        result.folders.append((folder, files))
        done += len(files)
        progress("reading", done, 0)
    # Where nothing is to be done, it does not matter what of it git ignores.
    if result.data and not no_ignore:
        _set_ignored_aside(result, paths)
    return result


def _excluded(
    patterns: tuple[str, ...], paths: tuple[str, ...], folders: list[Folder]
) -> tuple[Set[str], tuple[str, ...]]:
    from gtp_migrate.recipes.ignore import excluded

    return excluded(patterns, paths, (f"{folder.path}/{name}" for folder in folders for name in folder.names))


def _set_ignored_aside(result: Survey, paths: tuple[str, ...]) -> None:
    from gtp_migrate.recipes.checkout import ignored

    left_out = ignored(
        (f"{folder.real}/{name}" for folder, files in result.folders for name, _ in files),
        (path for path in paths if os.path.isdir(path)),
    )
    named = set(map(recipe_id, paths))
    for folder, files in result.folders if left_out else ():
        kept = []
        for name, seen in files:
            path = f"{folder.path}/{name}"
            if f"{folder.real}/{name}" in left_out and path not in named:
                result.ignored.append(folder.found(name))
                result.data.pop(path, None)
            else:
                kept.append((name, seen))
        files[:] = kept
    result.set_aside += result.ignored


def read_bytes(path: str) -> bytes:
    """All bytes of a file; about twice as fast as `open`, which is what ten thousand small files are made of.

    Raises:
        OSError: it cannot be read.
    """
    handle = os.open(path, os.O_RDONLY)
    try:
        data = os.read(handle, _CHUNK)
        if len(data) == _CHUNK:
            with open(handle, "rb", closefd=False) as rest:
                data += rest.read()
        return data
    finally:
        os.close(handle)
