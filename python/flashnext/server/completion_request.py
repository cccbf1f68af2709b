"""What POST /v1/completions accepts; see `fields.COMPLETIONS` for all of its fields."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from flashnext.engine.sampling import Sampling
from flashnext.server.drawing import Drawing, check_top_logprobs
from flashnext.server.fields import COMPLETIONS, Unknown
from flashnext.server.settings import Defaults
from flashnext.text.messages import InvalidField

MAX_REPLIES = 128
MAX_SCORES = 200_000
"""Most log-probabilities that one response tells of its prompts: they are written at once."""

Prompt = str | list[int]


class CompletionRequest(Drawing):
    """The honoured fields."""

    prompt: Any
    max_tokens: int | None = Field(None, ge=0)
    echo: bool = False
    logprobs: int | None = None

    @classmethod
    def read(cls, body: Mapping[str, Any], unknown: Unknown) -> CompletionRequest:
        """Check a request's body.

        Raises:
            InvalidField: The first field that is refused, unknown where those are, or out of its range.
        """
        request = cls.check(body, COMPLETIONS, unknown)
        check_top_logprobs(request.logprobs, "logprobs")
        if request.max_tokens == 0 and not request.echo:
            raise InvalidField("max_tokens", "0 is for echo: true; otherwise give 1 or more")
        n = len(request.prompts()) * request.n
        if n > MAX_REPLIES:
            raise InvalidField(
                "prompt", f"prompts times n are {n} replies, at most {MAX_REPLIES} go together"
            )
        return request

    def prompts(self) -> list[Prompt]:
        """Read the prompts: texts or lists of token ids, one or a list of them.

        Raises:
            InvalidField: Something else.
        """
        given = self.prompt
        if isinstance(given, str):
            return [given]
        if not isinstance(given, list) or not given:
            raise InvalidField(
                "prompt", f"expected text, token ids, or a list of either, found {given!r}"[:200]
            )
        if not self.has_list:
            return [given]
        for i, one in enumerate(given):
            if not isinstance(one, str) and not (isinstance(one, list) and all(_is_id(x) for x in one)):
                raise InvalidField(
                    f"prompt[{i}]", f"expected text or a list of token ids, found {one!r}"[:200]
                )
        return given

    @property
    def has_list(self) -> bool:
        """Whether the prompts are a list, be it of one."""
        return isinstance(self.prompt, list) and not all(_is_id(one) for one in self.prompt)

    @property
    def scores_prompt(self) -> bool:
        """Whether the log-probabilities of the prompt's tokens are asked for."""
        return self.echo and self.logprobs is not None

    def sampling(self, defaults: Defaults, context: int) -> Sampling:
        """Read how to draw, on a server with so large a context.

        Raises:
            InvalidField: A value out of its range.
        """
        caps = {} if self.max_tokens is None else {"max_tokens": max(1, self.max_tokens)}
        return self.drawn(
            defaults,
            context,
            caps,
            stop=self.stop,
            logprobs=self.logprobs,
            prompt_logprobs=self.scores_prompt,
            grammar=self.grammar(),
        )


def _is_id(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
