"""The fields that routes share: how replies are drawn, and on the older ones how many and in what form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from flashnext.engine.sampling import MAX_TOP_LOGPROBS, Sampling
from flashnext.grammar import Grammar
from flashnext.server import structured
from flashnext.server.fields import Table, Unknown, honoured_fields, known_options
from flashnext.server.settings import Defaults
from flashnext.server.structured import know_format, read_grammar
from flashnext.text.messages import InvalidField, cut

MAX_CHOICES = 64

# What a field should have been, for each kind of error that pydantic finds in the fields of a request, in our
# words; those that are not here, ranges for the most part, read well as they are.
_EXPECTED = {
    "bool_type": "be true or false",
    "dict_type": "be an object",
    "finite_number": "be a finite number",
    "float_type": "be a number",
    "int_from_float": "be a whole number",
    "int_type": "be a whole number",
    "list_type": "be a list",
    "model_type": "be an object",
    "string_too_short": "not be empty",
    "string_type": "be text",
    "too_long": "have at most {max_length} items",
    "too_short": "not be empty",
}


class StreamOptions(BaseModel):
    """`stream_options`; both ask for usage, at the end or with every chunk."""

    model_config = ConfigDict(extra="forbid", strict=True)

    include_usage: bool = False
    continuous_usage_stats: bool = False


class Drawn(BaseModel):
    """How a reply is drawn, on every route, checked for type and range; `Sampling` checks the rest."""

    model_config = ConfigDict(extra="forbid", strict=True)

    model: str = Field(min_length=1)
    stream: bool = False
    seed: int | None = Field(None, ge=-(2**63), le=2**64 - 1)
    temperature: float | None = Field(None, ge=0, le=100, allow_inf_nan=False)
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=-1)
    min_p: float | None = Field(None, ge=0, le=1)
    frequency_penalty: float = Field(0.0, ge=-2, le=2)
    presence_penalty: float = Field(0.0, ge=-2, le=2)
    repetition_penalty: float = Field(1.0, gt=0, le=100)
    logit_bias: dict[str, Any] = {}
    ignore_eos: bool = False
    min_tokens: int = Field(0, ge=0)
    stop_token_ids: list[int] = Field([], max_length=64, fail_fast=True)
    draft: bool = True
    cache: bool = True
    priority: str = "normal"
    return_token_ids: bool = False

    @classmethod
    def check(cls, body: Mapping[str, Any], table: Table, unknown: Unknown) -> Self:
        """Check a request's body. A field that is null counts as absent.

        Raises:
            InvalidField: The first field that is refused, unknown where those are, or out of its range.
        """
        fields = honoured_fields(body, table, unknown)
        options = fields.get("stream_options")
        if isinstance(options, dict):
            fields["stream_options"] = known_options(
                options,
                "stream_options",
                tuple(StreamOptions.model_fields),
                ("include_obfuscation",),
                unknown,
            )
        know_format(fields.get("response_format"), "response_format", unknown)
        request = checked(cls, fields)
        if request.min_tokens and not request.ignore_eos:
            raise InvalidField(
                "min_tokens",
                "not supported but with ignore_eos; give ignore_eos and max_tokens for a fixed length",
            )
        return request

    def drawn(
        self,
        defaults: Defaults,
        context: int,
        caps: Mapping[str, int],
        *,
        stop: Any = None,
        logprobs: int | None = None,
        **more: Any,
    ) -> Sampling:
        """Say how to draw.

        Args:
            defaults: The server's. A cap of theirs beyond the context means the context.
            context: Largest prompt plus reply, in tokens.
            caps: The fields of the request that say how many tokens the reply has at most.
            stop: Texts that end it, or one.
            logprobs: How many of the likeliest tokens to tell; None for no log-probabilities at all.
            more: Further fields of Sampling.

        Raises:
            InvalidField: A value out of its range.
        """
        for name, cap in caps.items():
            if cap > context:
                raise InvalidField(name, f"expected 1 to {context}, the context, found {cap}"[:200])
        most = next(iter(caps.values()), defaults.max_tokens)
        return Sampling(
            temperature=defaults.temperature if self.temperature is None else self.temperature,
            top_k=defaults.top_k if self.top_k is None else self.top_k,
            top_p=defaults.top_p if self.top_p is None else self.top_p,
            min_p=self.min_p,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            repetition_penalty=self.repetition_penalty,
            logit_bias=self._bias(),
            seed=self.seed,
            max_tokens=None if most is None else min(most, context),
            stop=_stops(stop),
            stop_token_ids=self.stop_token_ids,
            logprobs=logprobs,
            draft=self.draft,
            cache=self.cache,
            priority=self.priority,
            ignore_eos=self.ignore_eos,
            **more,
        )

    def _bias(self) -> dict[int, float]:
        bias: dict[int, float] = {}
        for key, value in self.logit_bias.items():
            if not key.isascii() or not key.isdigit() or len(key) > 18:
                raise InvalidField("logit_bias", f"expected token ids as keys, found {key!r}"[:200])
            bias[int(key)] = value
        if len(bias) < len(self.logit_bias):
            raise InvalidField("logit_bias", "a token id stands twice")
        return bias


class Drawing(Drawn):
    """What chat completions and completions share."""

    stream_options: StreamOptions = StreamOptions()
    n: int = Field(1, ge=1, le=MAX_CHOICES)
    max_tokens: int | None = Field(None, ge=1)
    stop: Any = None
    response_format: Any = None
    structured_outputs: Any = None
    guided_json: Any = None
    guided_regex: Any = None
    guided_choice: Any = None
    guided_grammar: Any = None

    def grammar(self) -> Grammar | None:
        """Read what replies have to match.

        Raises:
            InvalidField: A field that says so is wrong.
        """
        return read_grammar({name: getattr(self, name) for name in structured.FIELDS})

    @property
    def stream_usage(self) -> bool:
        """Whether a stream tells usage."""
        return self.stream_options.include_usage or self.stream_options.continuous_usage_stats


Body = TypeVar("Body", bound=BaseModel)


def checked(kind: type[Body], fields: Mapping[str, Any]) -> Body:
    """Check the honoured fields of a body.

    Raises:
        InvalidField: The first that is wrong.
    """
    try:
        return kind.model_validate(fields)
    except ValidationError as error:
        raise invalid(error) from None


def _stops(given: Any) -> list[Any]:
    stop = [] if given is None else [given] if isinstance(given, str) else given
    if not isinstance(stop, list):
        raise InvalidField("stop", f"expected text or a list of texts, found {given!r}"[:200])
    return stop


def check_top_logprobs(wanted: int | None, field: str) -> None:
    """Check how many of the likeliest tokens are to be told.

    Raises:
        InvalidField: More than the engine gives.
    """
    if wanted is not None and not 0 <= wanted <= MAX_TOP_LOGPROBS:
        raise InvalidField(field, f"should be from 0 to {MAX_TOP_LOGPROBS}, found {wanted}"[:200])


def invalid(error: ValidationError) -> InvalidField:
    """Tell of the first thing that is wrong."""
    first = error.errors(include_url=False)[0]
    field = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"])[1:]
    if first["type"] == "missing":
        return InvalidField(field, "missing")
    if first["type"] == "extra_forbidden":
        return InvalidField(field, "unknown field")
    given = first["input"]
    found = str(len(given)) if first["type"] == "too_long" else cut(repr(given), 80)
    expected = _EXPECTED.get(first["type"], first["msg"].removeprefix("Input should "))
    return InvalidField(field, f"should {expected.format(**first.get('ctx', {}))}, found {found}")
