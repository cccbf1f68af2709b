"""Faults planted around a kernel, each of which must turn one gate red.

A kernel with a fault behaves like the sound one on other data (it reads a wrong place, drops a tail, scales
wrongly), or like the sound one with other results (it leaves a tail unwritten). So a fault edits what a
launch is laid out from, or what it gave, and the same faults can be planted on every device.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from flashnext.contract.launch import GUARD_BYTES, Launch, Output, Result

Edit = Callable[[dict[str, Any]], dict[str, Any]]


@dataclass(frozen=True)
class Fault:
    """A fault and the gate that has to see it.

    Attributes:
        name: What the faulty kernel does.
        gate: "nonfinite", "repeat", "shapes" or "sums".
        data: Data -> the entries of it that the faulty kernel sees otherwise.
        result: Changes what came out, in place.
        in_company: Whether it happens only where a launch has more than one unit.
    """

    name: str
    gate: str
    data: Edit | None = None
    result: Callable[[Launch, Result], None] | None = None
    in_company: bool = False


def _floats(launch: Launch) -> list[Output]:
    return [o for o in launch.outputs if o.scalar is not None and int(np.prod(o.shape))]


def _fresh(launch: Launch) -> list[Output]:
    return [o for o in launch.outputs if not o.updated and int(np.prod(o.shape))]


def _swallow(launch: Launch, result: Result) -> None:
    for o in _floats(launch):
        view, values = o.view(result), o.values(result)
        assert o.scalar is not None
        view[...] = o.scalar.encode(np.where(np.isfinite(values), values, 0.0))


def _scale(launch: Launch, result: Result) -> None:
    for o in _floats(launch):
        assert o.scalar is not None
        o.view(result)[...] = o.scalar.encode(o.values(result) * 1.25)


def _flip_exact(launch: Launch, result: Result) -> None:
    for o in launch.outputs:
        if o.scalar is None and int(np.prod(o.shape)):
            _flip_bit(o, result)
            return


def _lean_on_company(launch: Launch, result: Result) -> None:
    first = next(o for o in launch.outputs if int(np.prod(o.shape)))
    _flip_bit(first, result)


def _flip_bit(o: Output, result: Result) -> None:
    view, unsigned = o.view(result), np.dtype(f"u{o.dtype.itemsize}")
    at = (0,) * len(o.shape)
    view[at] = (view[at].view(unsigned) ^ unsigned.type(1)).view(o.dtype)


def _leave_tail(launch: Launch, result: Result) -> None:
    o = _fresh(launch)[-1]
    last = tuple(n - 1 for n in o.shape)
    o.view(result)[last] = o.view(launch.slots)[last]


def _write_outside(launch: Launch, result: Result) -> None:
    result[launch.outputs[-1].slot][-GUARD_BYTES] ^= 1


def common_faults(launch: Launch, has_floats_in: bool) -> list[Fault]:
    """List the faults that any kernel can have, as far as this one's results can show them."""
    out = [
        Fault("result depends on its company", "repeat", result=_lean_on_company, in_company=True),
        Fault("write behind the end", "shapes", result=_write_outside),
    ]
    if _fresh(launch):
        out.append(Fault("last element not written", "shapes", result=_leave_tail))
    if _floats(launch):
        out.append(Fault("wrong scale of a result", "sums", result=_scale))
        if has_floats_in:
            out.append(Fault("NaN swallowed", "nonfinite", result=_swallow))
    if any(o.scalar is None for o in launch.outputs):
        out.append(Fault("an exact result off by one bit", "sums", result=_flip_exact))
    return out
