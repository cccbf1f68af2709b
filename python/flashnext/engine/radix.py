"""A radix tree over pages of row keys, with marks at any row: what begins alike lies on one path.

A row key is an int64 that says what stands at a position: a text row's is its token id. A row of media has a
key below 0 that is made from a hash of what it shows (`engine/frame.py`), so that equal keys mean equal rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

Keys = npt.NDArray[np.int64]
V = TypeVar("V")


def row_keys(tokens: npt.NDArray[np.int32]) -> Keys:
    """Make the keys of text rows.

    Args:
        tokens: (n,) int32.
    """
    return tokens.astype(np.int64)


def shared_rows(a: Keys, b: Keys) -> int:
    """Count the rows that two sequences begin with alike."""
    n = min(len(a), len(b))
    differ = a[:n] != b[:n]
    at = int(differ.argmax()) if n else 0
    return at if n and differ[at] else n


@dataclass(eq=False)
class _Node:
    """Whole pages that follow those of the parent.

    Attributes:
        keys: Theirs; empty for the root.
        end: Rows up to their end.
        children: By the bytes of their first page.
        marks: By the bytes of the rows, less than a page, that they lie behind the end.
    """

    keys: Keys
    end: int
    parent: _Node | None
    children: dict[bytes, _Node] = field(default_factory=dict)
    marks: dict[bytes, Mark] = field(default_factory=dict)  # type: ignore[type-arg]


@dataclass(eq=False)
class Mark(Generic[V]):
    """A place on a path.

    Attributes:
        n: Rows before it.
        value: What is kept there.
        parent: The next shallower mark of its path; the tree's root where there is none.
        children: The next deeper ones.
    """

    n: int
    value: V
    parent: Mark[V] | None
    children: set[Mark[V]] = field(default_factory=set)
    node: _Node = field(repr=False, kw_only=True)
    tail: bytes = field(repr=False, kw_only=True)

    @property
    def height(self) -> int:
        """Marks that lie deeper, on the path that has fewest; 2 counts for all more."""
        if not self.children:
            return 0
        return 1 if any(not child.children for child in self.children) else 2


class RadixTree(Generic[V]):
    """The tree.

    Attributes:
        root: A mark at 0 that is never found and never removed.
    """

    def __init__(self, root: V, page: int) -> None:
        """Make an empty tree.

        Args:
            root: The value of its root.
            page: Rows of a page.
        """
        self._page = page
        self._top = _Node(np.empty(0, np.int64), 0, None)
        self.root: Mark[V] = Mark(0, root, None, node=self._top, tail=b"")

    def path(self, keys: Keys) -> Iterator[Mark[V]]:
        """Give the marks that lie on the way of a sequence, its end included, the shallowest first."""
        node: _Node | None = self._top
        while node is not None:
            if node.marks:
                behind = keys[node.end : node.end + self._page - 1].tobytes()
                tails = (behind[:n] for n in range(0, len(behind) + 1, keys.itemsize))
                yield from (node.marks[tail] for tail in tails if tail in node.marks)
            child = node.children.get(self._first(keys, node.end))
            if child is None or not np.array_equal(keys[node.end : child.end], child.keys):
                break
            node = child
        # Within an edge that a sequence leaves in its middle there are no marks: edges end at them.

    def at(self, keys: Keys) -> Mark[V] | None:
        """Find the mark at the end of a sequence."""
        deepest = None
        for deepest in self.path(keys):  # noqa: B007
            pass
        return deepest if deepest is not None and deepest.n == len(keys) else None

    def shared(self, keys: Keys, least: int = 0) -> int:
        """Count the rows that a sequence begins with like any that was inserted; 0 for less than a page.

        Args:
            keys: (n,).
            least: Fewer are of no use, and may be counted short: many begin alike and part at one place, and
                none of them is looked at where that cannot make so many.
        """
        node = self._top
        while (child := node.children.get(self._first(keys, node.end))) is not None:
            n = shared_rows(keys[node.end : child.end], child.keys)
            if n < len(child.keys):
                return node.end + n
            node = child
        if node is self._top:
            return 0
        if node.end + self._page <= least:  # what differs behind it does so within a page
            return node.end
        behind = keys[node.end : node.end + self._page]
        others = [child.keys for child in node.children.values()]
        others += [np.frombuffer(tail, np.int64) for tail in node.marks]
        return node.end + max((shared_rows(behind, other) for other in others), default=0)

    def insert(self, keys: Keys, value: V) -> Mark[V]:
        """Put a mark at the end of a sequence, where there is none yet.

        Args:
            keys: (n,), n > 0.
            value: What is kept there.
        """
        n = len(keys)
        parent = self.root
        for parent in self.path(keys):  # noqa: B007
            pass
        assert 0 <= parent.n < n, "there is a mark already"
        end = n // self._page * self._page
        node = self._node_at(keys[:end])
        mark = Mark(n, value, parent, node=node, tail=keys[end:].tobytes())
        node.marks[mark.tail] = mark
        if node.children or len(node.marks) > 1:  # else nothing lies behind it
            mark.children = {child for child in parent.children if _begins_with(child, mark)}
        for child in mark.children:
            child.parent = mark
        parent.children -= mark.children
        parent.children.add(mark)
        return mark

    def remove(self, mark: Mark[V]) -> None:
        """Take a mark out; the deeper ones stay."""
        assert mark.parent is not None, "the root stays"
        mark.parent.children.remove(mark)
        mark.parent.children |= mark.children
        for child in mark.children:
            child.parent = mark.parent
        mark.children = set()
        mark.parent = None
        node = mark.node
        del node.marks[mark.tail]
        self._prune(node)

    def keys_of(self, mark: Mark[V]) -> Keys:
        """Give the rows before a mark: (n,) int64."""
        parts = [np.frombuffer(mark.tail, np.int64)]
        node: _Node | None = mark.node
        while node is not None:
            parts.append(node.keys)
            node = node.parent
        return np.concatenate(parts[::-1])

    def _first(self, keys: Keys, start: int) -> bytes:
        return keys[start : start + self._page].tobytes()

    def _node_at(self, keys: Keys) -> _Node:
        """Find or make the node that ends with these whole pages; edges are split where they part."""
        node = self._top
        while node.end < len(keys):
            child = node.children.get(self._first(keys, node.end))
            rest = keys[node.end :]
            if child is None:
                node = self._attach(node, rest)
                continue
            shared = shared_rows(child.keys, rest) // self._page * self._page
            node = child if shared == len(child.keys) else self._split(child, shared)
        return node

    def _attach(self, parent: _Node, keys: Keys) -> _Node:
        node = _Node(keys.copy(), parent.end + len(keys), parent)
        parent.children[self._first(keys, 0)] = node
        return node

    def _split(self, node: _Node, n: int) -> _Node:
        """Cut a node behind its first n rows; returns the upper part."""
        assert node.parent is not None
        upper = self._attach(node.parent, node.keys[:n])
        node.keys = node.keys[n:].copy()
        node.parent = upper
        upper.children[self._first(node.keys, 0)] = node
        return upper

    def _prune(self, node: _Node) -> None:
        """Drop what holds no mark any more, and join what nothing parts."""
        while node.parent is not None and not node.marks:
            if len(node.children) > 1:
                return
            parent = node.parent
            del parent.children[self._first(node.keys, 0)]
            if node.children:
                (child,) = node.children.values()
                child.keys = np.concatenate([node.keys, child.keys])
                child.parent = parent
                parent.children[self._first(child.keys, 0)] = child
                return
            node = parent


def _begins_with(deeper: Mark[V], mark: Mark[V]) -> bool:
    """Whether a mark that is deeper lies behind another."""
    if deeper.node is mark.node:
        return deeper.tail.startswith(mark.tail) and deeper.n > mark.n
    node = deeper.node
    while node.parent is not None and node.parent is not mark.node:
        node = node.parent
    return node.parent is mark.node and node.keys[: len(mark.tail) // 8].tobytes() == mark.tail
