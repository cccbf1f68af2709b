"""What POST /v1/chat/completions accepts: every field is honoured, harmless, or refused by its name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from flashnext.engine.sampling import Sampling
from flashnext.text.messages import InvalidField
from flashnext.text.template import TemplateOptions

# Accepted without effect: they change nothing of a reply.
HARMLESS = frozenset(
    {
        "cache",  # about speed alone, and there is none yet
        *(
            "metadata",
            "prompt_cache_key",
            "prompt_cache_retention",
            "safety_identifier",
            "service_tier",
            "store",
            "user",
        ),
    }
)
# Not supported yet, and accepted with the values that ask for nothing.
NOT_YET: Mapping[str, tuple[Any, ...]] = {
    "audio": (),
    "frequency_penalty": (0,),
    "function_call": ("none",),
    "functions": ([],),
    "guided_json": (),
    "ignore_eos": (False,),
    "logit_bias": ({},),
    "logprobs": (False,),
    "min_tokens": (0,),
    "modalities": (["text"],),
    "n": (1,),
    "parallel_tool_calls": (True,),
    "prediction": (),
    "presence_penalty": (0,),
    "priority": ("normal",),
    "reasoning_effort": (),
    "repetition_penalty": (1,),
    "response_format": ({"type": "text"},),
    "structured_outputs": (),
    "thinking_budget": (),
    "top_logprobs": (0,),
    "verbosity": ("medium",),
    "web_search_options": (),
}
_ADVICE = {
    "reasoning_effort": "; give it as chat_template_kwargs.reasoning_effort",
    "functions": "; give tools",
    "function_call": "; give tools",
}


class StreamOptions(BaseModel):
    """`stream_options`."""

    model_config = ConfigDict(extra="forbid", strict=True)

    include_usage: bool | None = None


class ChatRequest(BaseModel):
    """The honoured fields. Messages, tools and template options are checked where they are used."""

    model_config = ConfigDict(extra="forbid", strict=True)

    model: str = Field(min_length=1)
    messages: list[dict[str, Any]] = Field(min_length=1)
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    temperature: float | None = Field(None, ge=0, le=100, allow_inf_nan=False)
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=-1)
    min_p: float | None = Field(None, ge=0, le=1)
    seed: int | None = Field(None, ge=-(2**63), le=2**64 - 1)
    max_tokens: int | None = Field(None, ge=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    stop: Any = None
    tools: list[Any] | None = None
    tool_choice: Any = None
    chat_template_kwargs: dict[str, Any] | None = None
    return_token_ids: bool | None = None
    draft: bool | None = None

    @classmethod
    def read(cls, body: Mapping[str, Any]) -> ChatRequest:
        """Check a request's body. A field that is null counts as absent.

        Raises:
            InvalidField: The first field that is unknown, not supported yet, or out of its range.
        """
        fields = {name: value for name, value in body.items() if value is not None}
        for name, value in fields.items():
            if name in NOT_YET and value not in NOT_YET[name]:
                raise InvalidField(name, f"not supported yet{_ADVICE.get(name, '')}")
            if name not in cls.model_fields and name not in NOT_YET and name not in HARMLESS:
                raise InvalidField(name, "unknown field")
        try:
            request = cls.model_validate({n: v for n, v in fields.items() if n in cls.model_fields})
        except ValidationError as error:
            raise _invalid(error) from None
        if request.tool_choice not in (None, "auto", "none"):
            raise InvalidField("tool_choice", 'only "auto" and "none" are supported yet')
        return request

    @property
    def template_tools(self) -> list[Any] | None:
        """The tools that the prompt shows and that can be called; none with `tool_choice` "none"."""
        return self.tools if self.tools and self.tool_choice != "none" else None

    def options(self) -> TemplateOptions:
        """Read the options of the chat template.

        Raises:
            InvalidField: An unknown option or a wrong value.
        """
        return TemplateOptions.from_mapping(self.chat_template_kwargs or {})

    def sampling(self) -> Sampling:
        """Read how to draw.

        Raises:
            InvalidField: A value out of its range, or two different limits.
        """
        limits = {n for n in (self.max_tokens, self.max_completion_tokens) if n is not None}
        if len(limits) > 1:
            raise InvalidField("max_tokens", "max_completion_tokens says otherwise; give one of them")
        stop = [] if self.stop is None else [self.stop] if isinstance(self.stop, str) else self.stop
        if not isinstance(stop, list):
            raise InvalidField("stop", f"expected text or a list of texts, found {self.stop!r}"[:200])
        return Sampling(
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            min_p=self.min_p,
            seed=self.seed,
            max_tokens=limits.pop() if limits else None,
            stop=stop,
            draft=self.draft is not False,
        )


def _invalid(error: ValidationError) -> InvalidField:
    first = error.errors(include_url=False)[0]
    field = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"])[1:]
    if first["type"] == "missing":
        return InvalidField(field, "missing")
    if first["type"] == "extra_forbidden":
        return InvalidField(field, "unknown field")
    found = repr(first["input"])
    message = first["msg"].removeprefix("Input ").removeprefix("should ")
    return InvalidField(field, f"should {message}, found {found if len(found) <= 80 else found[:77] + '...'}")
