"""Kernels that move replies from one forward to the next: replies in memory, and tables that units share.

Such a kernel packs what belongs to its windows into tables one behind the other. So its oracle says what the
tables hold after a launch, `after`; which of it belongs to which unit, a launch says itself. What depends on
the place of a unit in the tables is a result of the launch over all units in order alone.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from flashnext.contract.family import Data, Expected, Family, Shape
from flashnext.contract.faults import Fault
from flashnext.contract.launch import Builder, Frame, Launch, Result
from flashnext.contract.scalars import Array, Scalar
from flashnext.contract.structs import MAX_WINDOW, STRUCTS

SPARE = 2  # records beyond the count
SEQUENCE_FIELDS = tuple(f for f in STRUCTS["Sequence"].names or () if f != "first_row")
ROW_FIELDS = tuple(f for f in STRUCTS["Row"].names or () if f != "sequence")

Records = npt.NDArray[np.void]


@dataclass(frozen=True)
class Reply:
    """What the device knows of a reply.

    Attributes:
        state: ReplyState, shape (1,); the addresses of text, counts and stops are set by `put`, any others
            are numbers that lead nowhere.
        text: (n,) int32, with room behind for drafts.
        counts: (2, n_valid) int32, or None where nothing is penalized.
        stops: (n_stops,) int32.
    """

    state: Records
    text: Array
    counts: Array | None = None
    stops: Array | None = None

    def __getitem__(self, field: str) -> int:
        """Read a whole number of the state."""
        return int(self.state[field][0])

    def put(self, b: Builder, i: int) -> None:
        """Add the memory of the launch's reply i: `reply i`, `text i`, `counts i`, `stops i`."""
        b.put(f"reply {i}", self.state)
        for field, array in (("text", self.text), ("counts", self.counts), ("stops", self.stops)):
            if array is not None and array.size:
                b.put(f"{field} {i}", array)
                b.address(f"reply {i}", offset("ReplyState", field), f"{field} {i}")


def draw_state(rng: np.random.Generator, **values: Any) -> Records:
    """Draw a ReplyState of random numbers, but for these fields; where there are no counts it says so."""
    state = np.frombuffer(rng.bytes(STRUCTS["ReplyState"].itemsize), STRUCTS["ReplyState"]).copy()
    delta = -(int(state["rotary_delta"][0]) % 4096)  # media take fewer positions than rows
    for field, value in {"counts": 0, "rotary_delta": delta, **values}.items():
        state[field] = value
    return state


def offset(struct: str, field: str) -> int:
    """Where a field begins, in bytes."""
    fields = STRUCTS[struct].fields
    assert fields is not None
    return int(fields[field][1])


def poisoned(struct: str, n: int, frame: Frame) -> Records:
    """Make n records of poison."""
    dtype = STRUCTS[struct]
    return np.full(n * dtype.itemsize, frame.poison, np.uint8).view(dtype)


def room(b: Builder, slot: str, n: int, kind: str | npt.DTypeLike) -> None:
    """Add a slot of n records, or elements, to be written, and spare ones that are not."""
    dtype = np.dtype(STRUCTS[kind] if isinstance(kind, str) else kind)
    b.room(slot, (n + SPARE) * dtype.itemsize)


def records(
    b: Builder,
    unit: int,
    slot: str,
    struct: str,
    span: tuple[int, int],
    fields: Sequence[str],
    updated: bool = False,
    name: str = "",
) -> None:
    """Add the fields of `span` = (first, number) of a slot's records as results; a reply is an address."""
    dtype = STRUCTS[struct]
    first, n = span
    for field in fields if n else ():
        assert dtype.fields is not None
        kind = dtype.fields[field][0]
        inner = np.empty(kind.shape, kind.base)
        b.output(
            f"{name or slot} {field}",
            unit,
            slot,
            first * dtype.itemsize + offset(struct, field),
            kind.base,
            (n, *kind.shape),
            (dtype.itemsize, *inner.strides),
            updated,
            is_address=field == "reply",
        )


def elements(
    b: Builder,
    unit: int,
    slot: str,
    span: tuple[int, int],
    dtype: npt.DTypeLike = np.int32,
    updated: bool = False,
    name: str = "",
) -> None:
    """Add `span` = (first, number) of a slot's elements as results."""
    first, n = span
    if n:
        at = first * np.dtype(dtype).itemsize
        b.output(name or slot, unit, slot, at, dtype, (n,), None, updated, is_address=dtype == np.uint64)


class TableFamily(Family):
    """A family whose oracle says what tables hold.

    Attributes:
        wrongs: What a faulty kernel may do: a word that `after` knows -> the fault's name.
    """

    wrongs: ClassVar[Mapping[str, str]]

    @abstractmethod
    def after(
        self, shape: Shape, scalar: Scalar, data: Data, pick: Sequence[int], wrong: str = ""
    ) -> Mapping[str, Array]:
        """Compute what the slots that hold results have in them behind a launch over `pick`.

        Args:
            shape: As `launch` takes it.
            scalar: As `launch` takes it.
            data: As `launch` takes it.
            pick: As `launch` takes it.
            wrong: What the kernel does wrongly, of `wrongs`.

        Returns:
            Slot -> records or elements from its start on, as many as the results need; the address of a
            unit's reply is the number unit + 1.
        """

    def reference(self, shape: Shape, scalar: Scalar, data: Data) -> Expected:
        """Read the results off the tables."""
        return self._read(shape, scalar, data, self._held(shape, scalar, data, ""))

    def faults(self, shape: Shape, scalar: Scalar, data: Data) -> Sequence[Fault]:
        """Plant each wrong that shows at these data."""
        sound = self.reference(shape, scalar, data)
        faults = []
        for wrong, name in self.wrongs.items():
            held = self._held(shape, scalar, data, wrong)
            other = self._read(shape, scalar, data, held)
            pairs = ((a, b) for key in sound for a, b in zip(sound[key], other[key], strict=True))
            if any(np.asarray(a).tobytes() != np.asarray(b).tobytes() for a, b in pairs):
                faults.append(Fault(name, "sums", result=_Held(held)))
        return faults

    def _held(self, shape: Shape, scalar: Scalar, data: Data, wrong: str) -> Result:
        units = range(self.units(shape))
        after = self.after(shape, scalar, data, units, wrong)
        return {key: np.ascontiguousarray(a).reshape(-1).view(np.uint8) for key, a in after.items()}

    def _read(self, shape: Shape, scalar: Scalar, data: Data, held: Result) -> dict[str, list[Array]]:
        n = self.units(shape)
        out: dict[str, list[Array]] = {}
        for o in self.launch(shape, scalar, data, range(n), Frame(lambda _: 1)).outputs:
            out.setdefault(o.name, [np.zeros(0, o.dtype)] * n)[o.unit] = o.view(held).copy()
        return out


class _Held:
    """Puts what tables hold in place of what came out."""

    def __init__(self, held: Result) -> None:
        self.held = held

    def __call__(self, launch: Launch, result: Result) -> None:
        for o in launch.outputs:
            o.view(result)[...] = o.view(self.held)


def most_drafts(reply: Reply, length: int, ended: bool, most: int, wrong: str = "") -> int:
    """Count the drafts that may stand behind the pending token of a reply, of at most `most`.

    Args:
        reply: The reply; its length and end may be those before.
        length: Its committed positions now.
        ended: Whether it has ended by now.
        most: As the host asked.
        wrong: "limit" goes past the end, "known" past known text.
    """
    if ended or (length + 1 < reply["known"] and wrong != "known"):
        return 0
    last = (
        reply["end"] - 1
    )  # no draft stands here or beyond, since the token drawn behind it would be too many
    return most if wrong == "limit" else len(range(length + 1, min(length + 1 + most, last)))


def reply_text(rng: np.random.Generator, length: int, n_ids: int = 200) -> Array:
    """Draw a text with `length` committed tokens, a pending one, and ones behind it for two windows."""
    return rng.integers(0, n_ids, length + 1 + 2 * MAX_WINDOW).astype(np.int32)
