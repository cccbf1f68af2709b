"""What the commands that load a model ask for alike."""

from __future__ import annotations

import argparse

from flashnext.engine.defaults import DRAFTS, LIMIT_PERCENT
from flashnext.server.options import gib


def add_loading_options(group: argparse._ActionsContainer) -> None:
    """Add the options of how a model is loaded: `device`, `dtype`, `drafts` and `load_limit`."""
    group.add_argument("--device", default="auto", help="auto, or the name of one (default auto)")
    group.add_argument(
        "--dtype", choices=("bfloat16", "float32"), default="bfloat16", help="(default bfloat16)"
    )
    group.add_argument(
        "--drafts", type=int, default=DRAFTS, metavar="N", help=f"most drafts of a round (default {DRAFTS})"
    )
    group.add_argument(
        "--load-limit",
        type=gib,
        metavar="GIB",
        help=f"most memory that all of it takes (default: {LIMIT_PERCENT} %% of the machine's)",
    )
