"""A reply made in the plainest way: one row after the other, drawn by the reference sampler."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from flashnext import _core
from flashnext.engine.load import Loaded

from support.reference.sampler import Rules, draw


def plain_reply(
    loaded: Loaded,
    n_tokens: int,
    prompt: Sequence[int],
    rules: Rules,
    length: int,
    *,
    stop_ids: Sequence[int] = (),
    forced: Sequence[int] = (),
    forced_at: int = 0,
) -> list[int]:
    """Make a reply on a fresh session: read the prompt, then each token by itself.

    Args:
        loaded: The model.
        n_tokens: Ids at or beyond it are never drawn.
        prompt: What is read first.
        rules: How tokens are drawn.
        length: Most tokens.
        stop_ids: That end it when they are drawn.
        forced: Tokens that are not drawn,
        forced_at: and the place in the reply where they stand.
    """
    runner = _core.Runner(loaded.model, n_tokens)
    session = _core.Session(loaded.model, loaded.pool)
    (rows,) = runner.forward([(session, np.asarray(prompt, np.int32), False)])
    reply: list[int] = []
    while True:
        at = len(reply) - forced_at
        is_forced = 0 <= at < len(forced)
        if is_forced:
            reply.append(forced[at])
        else:
            reply.append(draw(rows[-1], n_tokens, rules, len(prompt) + len(reply), prompt, reply))
        if len(reply) == length or (not is_forced and reply[-1] in stop_ids):
            break
        (rows,) = runner.forward([(session, np.asarray(reply[-1:], np.int32), True)])
        session.keep(1)
    session.close()
    return reply
