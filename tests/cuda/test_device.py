"""The cuda device: what its words mean, how work and errors come back, and what a build without it says."""

from __future__ import annotations

import numpy as np
import pytest
from flashnext import _core as core
from flashnext.errors import DeviceError
from support.engine import CUDA, WHY_NO_CUDA

PATHS = ("", "graph", "one by one", "device memory", "graph, device memory")
needs_gpu = pytest.mark.skipif(bool(WHY_NO_CUDA), reason=WHY_NO_CUDA)


@pytest.mark.skipif(CUDA in core.device_kinds(), reason="this build has a cuda device")
def test_a_build_without_it_says_how_to_get_one() -> None:
    with pytest.raises(ValueError, match="FLASHNEXT_CUDA=ON makes one that has"):
        core.open_device(CUDA)


@pytest.mark.skipif(CUDA not in core.device_kinds(), reason="this build has no cuda device")
def test_unknown_words_of_its_path_are_refused() -> None:
    with pytest.raises(ValueError, match="expected nothing or some of graph, one by one, device memory"):
        core.open_device(CUDA, path="quickly")
    with pytest.raises(ValueError, match="a graph does not run one by one"):
        core.open_device(CUDA, path="graph, one by one")


@pytest.mark.skipif(
    CUDA not in core.device_kinds() or not WHY_NO_CUDA, reason="this build has none, or a GPU is here"
)
def test_without_a_gpu_it_says_so() -> None:
    with pytest.raises(RuntimeError, match="no NVIDIA GPU can be used here"):
        core.open_device(CUDA)


def copy_rows(device: core.Device, source: np.ndarray, rows: list[int]) -> np.ndarray:
    """Rows of a float32 array, gathered by a kernel."""
    width = source.shape[1]
    counts = np.array([len(rows), 1, 0, 0], np.int32).view(np.uint8)
    out = np.zeros(len(rows) * width * 4, np.uint8)
    slots = [counts, np.array(rows, np.int32).view(np.uint8), source.reshape(-1).view(np.uint8), out]
    params = np.array([width, 0], np.uint32).tobytes()
    core.testing.run_kernel(device, "copy_rows_f32", (len(rows), 1, 1), slots, params)
    return out.view(np.float32).reshape(len(rows), width)


@needs_gpu
@pytest.mark.parametrize("path", PATHS)
def test_every_path_runs_a_kernel(path: str) -> None:
    device = core.open_device(CUDA, path=path)
    assert device.name.startswith("cuda (") and device.name.endswith((path and f", {path}") + ")")
    source = np.random.default_rng(1).standard_normal((5, 300), np.float32)
    assert (copy_rows(device, source, [4, 0, 4, 2]) == source[[4, 0, 4, 2]]).all()
    assert device.busy_ns > 0


@needs_gpu
def test_each_command_buffer_is_traced() -> None:
    device = core.open_device(CUDA)
    for _ in range(3):
        copy_rows(device, np.ones((2, 8), np.float32), [1])
    traces = core.testing.cuda_trace(device)
    assert [(t["number"], t["dispatches"], t["host_waits"], t["host_signals"]) for t in traces] == [
        (n, 1, 0, 1) for n in (1, 2, 3)
    ]
    assert core.testing.cuda_trace(device) == []


@needs_gpu
def test_a_kernel_that_cannot_be_launched_is_named_by_the_wait() -> None:
    device = core.open_device(CUDA)
    slots = [np.zeros(64, np.uint8) for _ in range(4)]
    with pytest.raises(DeviceError, match="copy_rows_f32: an argument struct of 0 bytes"):
        core.testing.run_kernel(device, "copy_rows_f32", (1, 1, 1), slots, b"")
    # The device lives on: nothing ran.
    copy_rows(device, np.ones((2, 8), np.float32), [1])


@needs_gpu
def test_a_copy_within_the_gpus_memory_has_a_bandwidth() -> None:
    device = core.open_device(CUDA)
    assert core.testing.cuda_copy_bandwidth(device, 1 << 26) > 0
    with pytest.raises(ValueError, match="no work to run again; open the device with path 'device memory'"):
        core.testing.cuda_replay(device, 1)
    with pytest.raises(ValueError, match="is no cuda device"):
        core.testing.cuda_trace(core.open_device("cpu"))
