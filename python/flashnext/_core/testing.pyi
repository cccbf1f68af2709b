"""Single kernels, the sampler and the argument structs, for tests."""

from collections.abc import Sequence
import enum
from typing import Annotated, overload

import numpy
from numpy.typing import NDArray

import flashnext._core


def run_kernel(device: flashnext._core.Device, name: str, grid: tuple[int, int, int], slots: Sequence[Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu')]], params: bytes, relocate: Sequence[tuple[int, int, int, int]] = [], one_buffer: bool = False, n_spare: int = 0) -> None:
    """
    Run one kernel over uint8 arrays, which are changed in place; relocate writes device addresses of slots into slots.
    """

def kernel_names(device: flashnext._core.Device) -> list[str]: ...

def kernel_tile(device: flashnext._core.Device, name: str) -> int: ...

def kernel_rows(device: flashnext._core.Device, name: str) -> int: ...

def metal_kernels() -> dict[str, int]:
    """Kernels that a Metal device is handed -> threads of a threadgroup."""

def fail_dispatch(device: flashnext._core.Device, kernel: str, n: int = 1, what: str = 'planted') -> None:
    """Let the n-th dispatch of a kernel from now on fail with a text, once."""

def fail_allocation(device: flashnext._core.Device, n: int = 1) -> None:
    """Let the n-th allocation from now on fail, once."""

def clear_faults(device: flashnext._core.Device) -> None:
    """Let nothing fail any more that has not yet."""

def n_faults(device: flashnext._core.Device) -> int:
    """Planted failures that have not happened."""

def write_page(snapshot: flashnext._core.Snapshot, index: int, bytes: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu')]) -> None:
    """
    Overwrite a page of a snapshot, for all who share it. Nothing may be in flight.
    """

def params_layout() -> dict[str, tuple[int, dict[str, tuple[int, int]]]]:
    """Struct name -> (size, {field: (offset, size)}) of metal/params.h."""

def draw(logits: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], n_valid: int, sampling: flashnext._core.Sampling, position: int, prompt: Sequence[int] = [], reply: Sequence[int] = []) -> int:
    """The reference sampler's draw."""

def logprobs(logits: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], n_valid: int, token: int, n_top: int) -> tuple[float, list[tuple[int, float]]]: ...

def gumbel(seed: int, position: int, id: int) -> float: ...

def choice_seed(seed: int, choice: int) -> int: ...

def exact_exp(x: float) -> float: ...

def exact_log(x: float) -> float: ...

def cuda_trace(device: flashnext._core.Device) -> list[dict[str, int]]:
    """
    Command buffers that a cuda device was given since the last call, in order: how many dispatches, waits for the host and signals to it each had, and when it was committed, put into streams and landed.
    """

def cuda_replay(device: flashnext._core.Device, n: int) -> tuple[list[tuple[str, str, tuple[int, int, int], bytes, float]], list[float], list[float]]:
    """
    Run the last command buffer of a cuda device with path 'device memory' again: (each dispatch with part, kernel, grid, argument struct and microseconds alone; milliseconds of n runs as one graph; of n runs by single launches).
    """

def cuda_copy_bandwidth(device: flashnext._core.Device, size_bytes: int) -> float:
    """
    Bytes a second, read and written, that a copy within a cuda device's memory moves at best.
    """

class DraftSource(enum.Enum):
    """Where drafts come from."""

    HEAD = 0

    COPY = 1

class Prices:
    """What a round costs, in milliseconds; see cpp/rounds/prices.h."""

    def __init__(self) -> None: ...

    def forward_ms(self, rows: int) -> float: ...

    def draft_step_ms(self, n_sequences: int) -> float: ...

    def round_ms(self, rows: int, drafting: Sequence[int] = []) -> float:
        """drafting: sequences of each draft step."""

    def set_measured(self, rows: int, ms: float) -> None: ...

    def set_measured_draft_step(self, n_sequences: int, ms: float) -> None: ...

    def observe_round(self, rows: int, drafting: Sequence[int], ms: float) -> None: ...

PRICE_WIDTHS: list = [1, 2, 4, 8, 16, 32, 64]

class Acceptance:
    """How often drafts are kept; see cpp/rounds/acceptance.h."""

    def __init__(self) -> None: ...

    @staticmethod
    def of_all() -> Acceptance: ...

    def observe(self, source: DraftSource, proposed: int, accepted: int) -> None: ...

    def due(self, source: DraftSource) -> bool: ...

    @overload
    def rates(self, source: DraftSource, all: Acceptance) -> list[float]: ...

    @overload
    def rates(self, source: DraftSource) -> list[float]: ...

class Candidate:
    """A sequence that may get drafts."""

    def __init__(self, head: Sequence[float] = ..., copy: Sequence[float] = ..., most_head: int = 0, most_copied: int = 0, probe_head: bool = False, probe_copy: bool = False) -> None: ...

    @staticmethod
    def of(own: Acceptance, all: Acceptance, most_head: int, most_copied: int) -> Candidate: ...

def allocate(candidates: Sequence[Candidate], prices: Prices, row_limit: int) -> list[tuple[int, DraftSource]]:
    """Drafts and their source of each candidate."""

def draw_rows(device: flashnext._core.Device, logits: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], n_valid: int, rows: Sequence[tuple[flashnext._core.Sampling, int, Sequence[int], Sequence[int], Sequence[int], Sequence[int]]]) -> list[tuple[int, float, list[tuple[int, float]], int]]:
    """
    Draw a token for each row of logits on the device; a row is (sampling, position, prompt, reply as far as counted, further reply tokens, words of the mask or none). Returns (token, logprob, [(id, logprob)], hash) of each.
    """
