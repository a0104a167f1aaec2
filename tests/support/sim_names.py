"""The names of the simulated disk: directories, their entries, and which entries a power cut leaves.

Owns the model of directory durability (see sim_disk.py for its promises). Knows nothing of handles, space or faults.
"""

import errno
import os
from collections.abc import Callable, Iterator
from itertools import count
from typing import NoReturn

from tests.support.sim_inode import Inode, Luck


def refuse(code: int, path: str) -> NoReturn:
    """Raise the ``OSError`` that the kernel would raise."""
    raise OSError(code, os.strerror(code), path)


_numbers = count(1)


class Directory:
    """A directory: the names that processes see (``names``), and those on the platter (``durable``)."""

    __slots__ = ("durable", "names", "number")

    def __init__(self) -> None:
        self.number = -next(_numbers)
        self.names: dict[str, Inode | Directory] = {}
        self.durable: dict[str, Inode | Directory] = {}


Node = Inode | Directory
Place = tuple[Directory, str]


class NameChange:
    """One change of directory entries that is not synced. It is atomic, also across two directories.

    ``remove``: a name that is freed; ``add``: a name that ``node`` gets, in place of whatever had it. A rename does both."""

    __slots__ = ("add", "node", "remove")

    def __init__(self, node: Node, remove: Place | None, add: Place | None) -> None:
        self.node = node
        self.remove = remove
        self.add = add

    def directories(self) -> list[Directory]:
        return [place[0] for place in (self.remove, self.add) if place is not None]


class NameTree:
    """All directories of one disk, and the changes that no ``sync`` has made durable yet."""

    def __init__(self, ordered: bool) -> None:
        self.root = Directory()
        self._ordered = ordered
        self._changes: list[NameChange] = []  # oldest first, of all directories

    def find(self, path: str) -> Node | None:
        """Return the node at this path; None when there is none."""
        node: Node | None = self.root
        for name in path.split("/"):
            if name and name != ".":
                if not isinstance(node, Directory):
                    return None
                node = node.names.get(name)
        return node

    def existing(self, path: str) -> Node:
        """Return the node at this path. Raises: the kernel's error when there is none."""
        node: Node = self.root
        for name in path.split("/"):
            if name and name != ".":
                if not isinstance(node, Directory):
                    refuse(errno.ENOTDIR, path)
                child = node.names.get(name)
                if child is None:
                    refuse(errno.ENOENT, path)
                node = child
        return node

    def directory(self, path: str) -> Directory:
        node = self.existing(path)
        if not isinstance(node, Directory):
            refuse(errno.ENOTDIR, path)
        return node

    def parent(self, path: str) -> tuple[Directory, str]:
        """Return the directory that contains the path's last name, and that name ("" for the root)."""
        above, _, name = path.rstrip("/").rpartition("/")
        return self.directory(above), name

    def change(self, node: Node, remove: Place | None, add: Place | None) -> None:
        """Free the name ``remove`` and give ``node`` the name ``add``: at once for readers, later on the platter."""
        if remove is not None:
            del remove[0].names[remove[1]]
        if add is not None:
            add[0].names[add[1]] = node
        self._changes.append(NameChange(node, remove, add))

    def sync(self, directory: Directory) -> None:
        """Make every change of ``directory`` durable, together with the changes on which these depend: earlier changes of the
        same node, and those of the other directory of a rename, in order."""
        directories = {id(directory)}
        nodes: set[int] = set()
        synced: list[NameChange] = []
        waiting: list[NameChange] = []
        for change in reversed(self._changes):
            touched = {id(one) for one in change.directories()}
            if touched & directories or id(change.node) in nodes:
                synced.append(change)
                nodes.add(id(change.node))
                if self._ordered:
                    directories |= touched
            else:
                waiting.append(change)
        waiting.reverse()
        self._changes = waiting
        for change in reversed(synced):
            _make_durable(change, lambda one: one.durable)

    def after_crash(self, luck: Luck, torn_sectors: bool) -> "NameTree":
        """Return a tree, files included, that a power cut may leave. It shares nothing with this one."""
        after = NameTree(self._ordered)
        after.root = self._rebuild(self.root, self._surviving_names(luck), luck, torn_sectors)
        return after

    def _surviving_names(self, luck: Luck) -> dict[int, dict[str, Node]]:
        """Draw which changes survive. Returns the names of every directory that differs from its durable ones."""
        names: dict[int, dict[str, Node]] = {}

        def names_of(directory: Directory) -> dict[str, Node]:
            held = names.get(id(directory))
            if held is None:
                held = names[id(directory)] = dict(directory.durable)
            return held

        places: dict[int, Place | None] = {}  # each changed node's one name, after what has survived so far
        for change in self._survivors(luck, places):
            before = places[id(change.node)]
            if before is not None and names_of(before[0]).get(before[1]) is change.node:
                del names_of(before[0])[before[1]]  # not always change.remove: a rename between may be lost
            _make_durable(change, names_of)
            places[id(change.node)] = change.add
        return names

    def _survivors(self, luck: Luck, places: dict[int, Place | None]) -> Iterator[NameChange]:
        """Draw which changes survive, oldest first. Notes in ``places`` the durable name of each node."""
        left: dict[int, int] = {}  # how many more changes each directory keeps, when in order
        for change in self._changes:
            places.setdefault(id(change.node), change.remove)
            for key in {id(one) for one in change.directories()}:
                left[key] = left.get(key, 0) + 1
        if not self._ordered:
            yield from [change for change in self._changes if luck.keeps()]
            return
        left = {key: luck.version(count + 1) for key, count in left.items()}
        for change in self._changes:
            keys = {id(one) for one in change.directories()}
            survives = all(left[key] > 0 for key in keys)
            for key in keys:
                left[key] = left[key] - 1 if survives else 0
            if survives:
                yield change

    def _rebuild(
        self,
        directory: Directory,
        names: dict[int, dict[str, Node]],
        luck: Luck,
        torn_sectors: bool,
    ) -> Directory:
        after = Directory()
        for name, node in names.get(id(directory), directory.durable).items():
            if isinstance(node, Directory):
                copy: Node = self._rebuild(node, names, luck, torn_sectors)
            else:
                copy = Inode(node.after_crash(luck, self._ordered, torn_sectors))
            after.names[name] = after.durable[name] = copy
        return after


def inodes(directory: Directory) -> Iterator[Inode]:
    """Every file below ``directory`` that has a name."""
    for node in directory.names.values():
        if isinstance(node, Directory):
            yield from inodes(node)
        else:
            yield node


def subtree(directory: Directory) -> Iterator[Directory]:
    """``directory`` and every one below it."""
    yield directory
    for node in directory.names.values():
        if isinstance(node, Directory):
            yield from subtree(node)


def walk(directory: Directory, prefix: str) -> Iterator[tuple[str, bytes]]:
    """Yield every path below ``directory`` with its content; directories end in "/" and have no content."""
    for name, node in sorted(directory.names.items()):
        path = f"{prefix}/{name}"
        if isinstance(node, Directory):
            yield path + "/", b""
            yield from walk(node, path)
        else:
            yield path, bytes(node.data)


def _make_durable(change: NameChange, names_of: Callable[[Directory], dict[str, Node]]) -> None:
    if change.remove is not None:
        names_of(change.remove[0]).pop(change.remove[1], None)
    if change.add is not None:
        names_of(change.add[0])[change.add[1]] = change.node
