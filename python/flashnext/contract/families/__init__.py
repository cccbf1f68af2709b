"""The contracts of all kernels, a family of kernels a file; importing this package enters them."""

from flashnext.contract.families import (
    absorb,
    attention,
    copies,
    delta,
    draw,
    experts,
    hyper,
    index,
    logprobs,
    matmul,
    ngram,
    ple,
    rope,
    rounds,
    router,
    rows,
)

__all__ = [
    "absorb",
    "attention",
    "copies",
    "delta",
    "draw",
    "experts",
    "hyper",
    "index",
    "logprobs",
    "matmul",
    "ngram",
    "ple",
    "rope",
    "rounds",
    "router",
    "rows",
]
