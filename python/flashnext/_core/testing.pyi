"""Single kernels, the sampler and the argument structs, for tests."""

from collections.abc import Sequence
from typing import Annotated

import numpy
from numpy.typing import NDArray

import flashnext._core


def run_kernel(device: flashnext._core.Device, name: str, grid: tuple[int, int, int], slots: Sequence[Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu')]], params: bytes, relocate: Sequence[tuple[int, int, int, int]] = [], one_buffer: bool = False, n_spare: int = 0) -> None:
    """
    Run one kernel over uint8 arrays, which are changed in place; relocate writes device addresses of slots into slots.
    """

def kernel_names(device: flashnext._core.Device) -> list[str]: ...

def kernel_tile(device: flashnext._core.Device, name: str) -> int: ...

def params_layout() -> dict[str, tuple[int, dict[str, tuple[int, int]]]]:
    """Struct name -> (size, {field: (offset, size)}) of metal/params.h."""

def draw(logits: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], n_valid: int, sampling: flashnext._core.Sampling, position: int, prompt: Sequence[int] = [], reply: Sequence[int] = []) -> int:
    """The reference sampler's draw."""

def logprobs(logits: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], n_valid: int, token: int, n_top: int) -> tuple[float, list[tuple[int, float]]]: ...

def gumbel(seed: int, position: int, id: int) -> float: ...

def choice_seed(seed: int, choice: int) -> int: ...

def exact_exp(x: float) -> float: ...

def exact_log(x: float) -> float: ...

def draw_rows(device: flashnext._core.Device, logits: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], n_valid: int, rows: Sequence[tuple[flashnext._core.Sampling, int, Sequence[int], Sequence[int], Sequence[int]]]) -> list[tuple[int, float, list[tuple[int, float]], int]]:
    """
    Draw a token for each row of logits on the device; a row is (sampling, position, prompt, reply as far as counted, further reply tokens). Returns (token, logprob, [(id, logprob)], hash) of each.
    """
