"""Where llama.cpp's time goes: one decode step or prompt, by kind of graph node.

    python bench/profile_llama.py FILE.gguf --tokens 1 --context 128

Uses the scheduler's evaluation callback, which makes llama.cpp compute node by node; the sum is therefore a
little longer than a normal step. Times are CPU time of the calling thread, so that other processes on the
machine matter less.
Extra: `peers`.
"""

from __future__ import annotations

import argparse
import ctypes
import random
import re
import time
from collections import defaultdict
from pathlib import Path

import llamacpp

CALLBACK = ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.c_void_p, ctypes.c_bool, ctypes.c_void_p)


class NodeClock:
    """Adds up calling-thread CPU seconds and calls by kind of node; products are told apart by name."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.count: defaultdict[str, int] = defaultdict(int)
        self._last = 0.0
        self._ggml = llamacpp.loaded_library("ggml-base")
        for function in (self._ggml.ggml_op_desc, self._ggml.ggml_get_name):
            function.restype, function.argtypes = ctypes.c_char_p, [ctypes.c_void_p]

    def on_node(self, node: int, ask: bool, _: int) -> bool:
        """The evaluation callback: asked before a node whether to observe it, told after it."""
        if not ask:
            op = self._ggml.ggml_op_desc(node).decode()
            name = re.sub(r"[-_ ]*(\d+|\(.*\))", "", self._ggml.ggml_get_name(node).decode())
            kind = f"{op} {name}" if op.startswith("MUL_MAT") else op
            self.seconds[kind] += time.thread_time() - self._last
            self.count[kind] += 1
        self._last = time.thread_time()
        return True

    def clear(self) -> None:
        """Start over, after a warm-up."""
        self.seconds.clear()
        self.count.clear()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--tokens", type=int, default=1, help="rows of the measured call")
    parser.add_argument("--context", type=int, default=128, help="tokens before it")
    parser.add_argument("--repeat", type=int, default=8, help="measured calls")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--top", type=int, default=20, help="lines to print")
    args = parser.parse_args()

    clock = NodeClock()
    callback = CALLBACK(clock.on_node)
    model = llamacpp.Model(args.model)
    n_ctx = args.context + args.repeat * args.tokens
    session = llamacpp.Session(model, n_ctx, threads=args.threads, on_node=callback)
    rng = random.Random(0)

    def rows(n: int, start: int) -> list[llamacpp.Row]:
        return [(rng.randrange(model.n_vocab), start + i, 0) for i in range(n)]

    session.decode(rows(args.context, 0))
    clock.clear()
    for i in range(args.repeat):
        session.decode(rows(args.tokens, args.context + i * args.tokens))
    whole, n_nodes = sum(clock.seconds.values()), sum(clock.count.values()) / args.repeat
    print(
        f"{args.model.name}: {args.tokens} rows after {args.context}: "
        f"{whole / args.repeat * 1e3:.1f} ms a call, {n_nodes:.0f} nodes"
    )
    for kind, s in sorted(clock.seconds.items(), key=lambda item: -item[1])[: args.top]:
        per_call = clock.count[kind] / args.repeat
        print(f"{s / whole:6.1%} {s / args.repeat * 1e3:8.2f} ms {per_call:5.0f} x  {kind}")
    session.close()
    model.close()


if __name__ == "__main__":
    main()
