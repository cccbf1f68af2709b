"""The numpy mirror of metal/params.h against what the compiler made of it."""

from __future__ import annotations

import numpy as np
from flashnext import _core as core
from flashnext.contract.structs import STRUCTS


def test_every_struct_of_the_header_is_mirrored() -> None:
    assert set(core.testing.params_layout()) == set(STRUCTS)


def test_sizes_and_offsets_equal_those_of_the_compiler() -> None:
    for name, (size, fields) in core.testing.params_layout().items():
        dtype = STRUCTS[name]
        assert dtype.itemsize == size, name
        assert dtype.fields is not None
        ours = {
            field: (offset, kind.itemsize)
            for field, (kind, offset, *_) in dtype.fields.items()
            if field != "pad"
        }
        assert ours == fields, name


def test_a_moved_field_would_be_seen() -> None:
    moved = np.dtype([("n_windows", np.uint64)], align=True)
    size, fields = core.testing.params_layout()["RoundRowsParams"]
    assert moved.itemsize != size and fields["n_windows"] == (0, 4)
