"""The contracts of all kernels, a family of kernels a file; importing this package enters them."""

from flashnext.contract.families import (
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
    router,
    rows,
)

__all__ = [
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
    "router",
    "rows",
]
