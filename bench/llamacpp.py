"""The few llama.cpp calls the benchmarks need, over llama-cpp-python's C API.

Not `llama_cpp.Llama`: that class keeps every prompt row's logits and offers no batch of several sequences.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import llama_cpp as lib
import numpy as np
import numpy.typing as npt

FTYPES = {
    "q8_0": lib.LLAMA_FTYPE_MOSTLY_Q8_0,
    "q6_k": lib.LLAMA_FTYPE_MOSTLY_Q6_K,
    "q4_k": lib.LLAMA_FTYPE_MOSTLY_Q4_K_M,
}
LOG_ERROR = 4  # ggml_log_level
F32 = 0  # ggml_type
NO_FLASH_ATTENTION = 0  # llama_flash_attn_type
MAX_BATCH = 2048

Row = tuple[int, int, int]  # token, position, sequence


def _print_errors(level: int, text: bytes, _: ctypes.c_void_p) -> None:
    if level == LOG_ERROR:
        print(text.decode(errors="replace"), end="")


_log_callback = lib.llama_log_callback(_print_errors)  # kept, since llama.cpp holds no reference
lib.llama_log_set(_log_callback, ctypes.c_void_p())
lib.llama_backend_init()


def quantize(source: Path, target: Path, kind: str, threads: int) -> None:
    """Run llama.cpp's own quantizer on a BF16 or F32 file.

    Args:
        source: The file to read.
        target: The file to write.
        kind: One of FTYPES.
        threads: Threads of the quantizer.

    Raises:
        RuntimeError: llama.cpp could not; it has printed why.
    """
    params = lib.llama_model_quantize_default_params()
    params.nthread, params.ftype = threads, FTYPES[kind]
    if lib.llama_model_quantize(str(source).encode(), str(target).encode(), ctypes.byref(params)):
        raise RuntimeError(f"llama_model_quantize failed for {target}")


class Model:
    """A loaded GGUF file; close it after its sessions."""

    def __init__(self, path: Path) -> None:
        handle = lib.llama_model_load_from_file(str(path).encode(), lib.llama_model_default_params())
        if not handle:
            raise RuntimeError(f"llama.cpp cannot load {path}")
        self.handle: Any = handle
        self.n_vocab: int = lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(handle))

    def close(self) -> None:
        """Free the weights."""
        lib.llama_model_free(self.handle)


class Session:
    """A context of several sequences, with llama.cpp's defaults where nothing is said.

    Args:
        model: The weights.
        n_ctx: Tokens of one sequence.
        n_seq: Sequences.
        threads: Threads of decoding and of prompts.
        exact: Keep the KV cache in float32 and leave flash attention off, for comparison with float32
            references.
        poll: Attach a thread pool of ggml's own with this polling level (0 never spins, 100 always); for
            builds of llama.cpp without OpenMP, which otherwise start threads for every graph.
        on_node: A ggml_backend_sched_eval_callback, called around every graph node.

    Raises:
        RuntimeError: llama.cpp cannot open such a context.
    """

    def __init__(
        self,
        model: Model,
        n_ctx: int,
        n_seq: int = 1,
        threads: int = 2,
        exact: bool = False,
        poll: int | None = None,
        on_node: Any = None,
    ) -> None:
        context = lib.llama_context_default_params()
        context.n_ctx, context.n_batch, context.n_seq_max = n_ctx * n_seq, MAX_BATCH, n_seq
        context.n_threads = context.n_threads_batch = threads
        if exact:
            context.type_k = context.type_v = F32
            context.flash_attn_type = NO_FLASH_ATTENTION
        if on_node is not None:
            context.cb_eval = ctypes.cast(on_node, lib.ggml_backend_sched_eval_callback)
        self.context: Any = lib.llama_init_from_model(model.handle, context)
        if not self.context:
            raise RuntimeError(f"llama.cpp cannot open a context of {n_ctx} x {n_seq} tokens")
        self.n_vocab = model.n_vocab
        self.batch = lib.llama_batch_init(MAX_BATCH, 0, 1)
        self._pool = None if poll is None else _ThreadPool(self.context, threads, poll)

    def close(self) -> None:
        """Free the context, its batch and its threads."""
        lib.llama_batch_free(self.batch)
        lib.llama_free(self.context)
        if self._pool is not None:
            self._pool.close()

    def clear(self) -> None:
        """Forget all sequences."""
        lib.llama_memory_clear(lib.llama_get_memory(self.context), True)

    def fork(self, n_seq: int) -> None:
        """Copy sequence 0 into sequences 1 .. n_seq - 1."""
        for s in range(1, n_seq):
            lib.llama_memory_seq_cp(lib.llama_get_memory(self.context), 0, s, -1, -1)

    def decode(self, rows: Sequence[Row], want: Literal["last", "all"] = "last") -> npt.NDArray[np.float32]:
        """Run at most MAX_BATCH rows.

        Args:
            rows: Token, position and sequence of each row.
            want: Which rows' logits to compute.

        Returns:
            (R, vocabulary) float32 logits of those rows.

        Raises:
            RuntimeError: llama.cpp refused the batch.
        """
        self._run(rows, range(len(rows)) if want == "all" else [len(rows) - 1])
        return np.stack(
            [self._logits(i).copy() for i in (range(len(rows)) if want == "all" else [len(rows) - 1])]
        )

    def decode_greedy(self, rows: Sequence[Row]) -> int:
        """Run at most MAX_BATCH rows and return the best token after the last one."""
        return self.decode_greedy_each(rows, [len(rows) - 1])[0]

    def decode_greedy_each(self, rows: Sequence[Row], want: Sequence[int]) -> list[int]:
        """Run at most MAX_BATCH rows and return the best token after each of the wanted ones, in order."""
        self._run(rows, want)
        return [int(self._logits(i).argmax()) for i in want]

    def _run(self, rows: Sequence[Row], want: Sequence[int]) -> None:
        b, wanted = self.batch, frozenset(want)
        b.n_tokens = len(rows)
        for i, (token, position, sequence) in enumerate(rows):
            b.token[i], b.pos[i], b.n_seq_id[i] = token, position, 1
            b.seq_id[i][0] = sequence
            b.logits[i] = i in wanted
        if status := lib.llama_decode(self.context, b):
            raise RuntimeError(f"llama_decode returned {status} for {len(rows)} rows")

    def _logits(self, row: int) -> npt.NDArray[np.float32]:
        """A row's logits, in place: valid until the next call."""
        pointer: Any = lib.llama_get_logits_ith(self.context, row)
        return np.ctypeslib.as_array(pointer, (self.n_vocab,))


def loaded_library(name: str) -> ctypes.CDLL:
    """One of the libraries that llama.cpp has already loaded.

    By its versioned name: the package ships each one as several copies, and another copy has state of its
    own.
    """
    return ctypes.CDLL(f"lib{name}.so.0")


class _ThreadPoolParams(ctypes.Structure):
    """struct ggml_threadpool_params, ggml.h of llama-cpp-python 0.3.36."""

    _fields_ = (
        ("cpumask", ctypes.c_bool * 512),
        ("n_threads", ctypes.c_int),
        ("prio", ctypes.c_int),
        ("poll", ctypes.c_uint32),
        ("strict_cpu", ctypes.c_bool),
        ("paused", ctypes.c_bool),
    )


class _ThreadPool:
    """ggml's own worker threads, attached to a context as llama.cpp's command line tools do."""

    def __init__(self, context: Any, threads: int, poll: int) -> None:
        self._cpu, base = loaded_library("ggml-cpu"), loaded_library("ggml-base")
        params = _ThreadPoolParams()
        base.ggml_threadpool_params_init.argtypes = [ctypes.POINTER(_ThreadPoolParams), ctypes.c_int]
        base.ggml_threadpool_params_init(ctypes.byref(params), threads)
        params.poll = poll
        self._cpu.ggml_threadpool_new.restype = ctypes.c_void_p
        self._cpu.ggml_threadpool_new.argtypes = [ctypes.POINTER(_ThreadPoolParams)]
        self._cpu.ggml_threadpool_free.argtypes = [ctypes.c_void_p]
        self._handle = self._cpu.ggml_threadpool_new(ctypes.byref(params))
        attach: Any = lib.llama_cpp._lib.llama_attach_threadpool
        attach.argtypes = [ctypes.c_void_p] * 3
        attach(context, self._handle, self._handle)

    def close(self) -> None:
        self._cpu.ggml_threadpool_free(self._handle)
