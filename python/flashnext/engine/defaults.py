"""What the engine does where nobody says otherwise; light to import, so that `--help` knows it too."""

from __future__ import annotations

PARALLEL = 16
"""Replies that are made at once where the pages allow it (`--parallel auto`)."""

MAX_PARALLEL = 64

GAP_MS = 250.0
"""How long a reply may stand still while prompts of others are read."""

ROUND_ROWS = 32
"""Rows of a round: the pending tokens of all its sequences, and their drafts."""

MAX_ROUND_ROWS = 64

MAX_WINDOW = 16
"""Rows of one sequence in a round: the pending token and its drafts."""

NGRAM_TABLE = ("auto", "resident", "streamed")
"""Where the n-gram table is: in memory, or in its file, of which the system keeps what it has room for; by
default in memory where that fits."""

DTYPES = ("bfloat16", "float32")
"""Of activations and caches."""

DRAFTS = 0
"""Most drafts of a sequence's round."""

LEAST_GIB, MOST_GIB = 0.001, 1_000_000
"""Of memory that a plan is made for, and of its limit."""

LIMIT_PERCENT = 70
"""Of the memory of a machine that a plan takes at most where nobody says otherwise."""

SPILL_GIB = 32.0
"""Most that a spill directory takes."""

SAVE_S = 5.0
"""How long what only memory has is written there when the engine is closed, at most."""

SPILL_PIECE_BYTES = 1 << 27
"""Pages that are read from it before they go into the pool, so that a long state takes no memory twice."""
