"""The contracts of all kernels, a family of kernels a file; importing this package enters them."""

from flashnext.contract.families import (
    attention,
    copies,
    delta,
    experts,
    hyper,
    index,
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
    "experts",
    "hyper",
    "index",
    "matmul",
    "ngram",
    "ple",
    "rope",
    "router",
    "rows",
]
