"""Log-probabilities of a prompt's own tokens, for `echo` with `logprobs`."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from flashnext.engine.engine import Engine
from flashnext.engine.sampling import Sampling
from flashnext.errors import DeviceError
from flashnext.server.logprobs import Scored

_CERTAIN = 100.0
"""Added to a token's logit it is the likeliest, since no two logits of the model are that far apart."""
_AT_ONCE = 16


@dataclass(frozen=True)
class Scorer:
    """Asks the engine for each token of a prompt as the reply to all before it.

    Log-probabilities are of the model's own distribution, whatever bias makes it draw the token.
    """

    engine: Engine
    n_top: int

    async def score(self, ids: list[int]) -> list[Scored]:
        """Score a prompt.

        Returns:
            One entry a token; the first has no log-probability, for nothing stands before it.

        Raises:
            Exception: What ended a request.
        """
        turn = asyncio.Semaphore(_AT_ONCE)

        async def one(i: int) -> Scored:
            async with turn:
                sampling = Sampling(
                    temperature=0,
                    max_tokens=1,
                    logit_bias={ids[i]: _CERTAIN},
                    logprobs=self.n_top,
                    draft=False,
                )
                request = await self.engine.generate_async(ids[:i], sampling=sampling)
                reply = await request.result()
            drawn = (reply.logprobs or ())[0]
            if drawn.token_id != ids[i]:
                raise DeviceError(f"the prompt's token {i} could not be scored: its logit is out of reach")
            return drawn.token_id, drawn.logprob, drawn.top

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(i)) for i in range(1, len(ids))]
        return [(ids[0], None, ()), *(task.result() for task in tasks)]
