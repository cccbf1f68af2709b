"""What POST /v1/responses accepts; see `fields.RESPONSES` for all of its fields."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self, get_args

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr

from flashnext.engine.sampling import Sampling
from flashnext.grammar import Grammar
from flashnext.server.chat_form import function_tools, in_call_order
from flashnext.server.chat_request import Asked, Effort, template_options
from flashnext.server.drawing import Drawn, check_top_logprobs, checked
from flashnext.server.fields import (
    RESPONSES,
    RESPONSES_COUNT,
    Table,
    Unknown,
    honoured_fields,
    known_options,
    told_as,
)
from flashnext.server.responses_items import chat_of, input_items
from flashnext.server.settings import Defaults
from flashnext.server.structured import either, know_choice, know_format, read_format, read_tool_choice
from flashnext.text.jsontext import dumps
from flashnext.text.messages import InvalidField, cut
from flashnext.text.template import TemplateOptions

LOGPROBS = "message.output_text.logprobs"
SEALED = "reasoning.encrypted_content"
# What else a client may want told is of items that are none of this server's.
INCLUDED = (
    LOGPROBS,
    SEALED,
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
)
TOOL = (
    *("type", "name", "description", "parameters", "strict", "output_schema"),
    *("allowed_callers", "defer_loading", "async", "cache_control"),
)
"""Fields of a tool."""
MAX_METADATA, MAX_METADATA_KEY, MAX_METADATA_VALUE = 16, 64, 512
"""Most pairs of `metadata`, and most characters of a key and of a value."""


class ResponsesPrompt(BaseModel):
    """The fields that decide what a prompt is, wherever it is asked for."""

    model_config = ConfigDict(extra="forbid", strict=True)

    input: Any = None
    instructions: str | None = None
    previous_response_id: str | None = None
    tools: list[Any] = Field([], fail_fast=True)
    tool_choice: Any = "auto"
    reasoning: dict[str, Any] = {}
    text: dict[str, Any] = {}
    chat_template_kwargs: dict[str, Any] = {}

    _items: list[dict[str, Any]] = PrivateAttr()
    _messages: list[dict[str, Any]] = PrivateAttr()
    _tools: list[Any] = PrivateAttr()
    _encoded: bytes = PrivateAttr()
    _form: Grammar | None = PrivateAttr(None)

    @property
    def items(self) -> list[dict[str, Any]]:
        """The input's items as they came."""
        return self._items

    @property
    def encoded(self) -> bytes:
        """They as JSON."""
        return self._encoded

    def _understand(self, unknown: Unknown) -> None:
        """Read all that has parts of its own.

        Raises:
            InvalidField: Something that cannot be read, or asks for what there is not.
        """
        if self.input is None and self.previous_response_id is None:
            raise InvalidField("input", "missing")
        self._items = input_items([] if self.input is None else self.input)
        self._encoded = dumps(self._items, separators=(",", ":")).encode()
        self._messages = chat_of(self._items, unknown)
        self._tools = function_tools(self.tools, "function", "parameters", TOOL, unknown)
        know_choice(self.tool_choice, unknown)
        self._calls(several=True)
        harmless = ("summary", "generate_summary", "context", "mode")
        options = known_options(self.reasoning, "reasoning", ("effort",), harmless, unknown)
        effort = options.get("effort")
        if effort is not None and effort not in get_args(Effort):
            raise InvalidField(
                "reasoning.effort",
                f"expected one of {', '.join(get_args(Effort))}, found {cut(repr(effort), 80)}",
            )
        form = known_options(self.text, "text", ("format", "verbosity"), (), unknown)
        know_format(form.get("format"), "text.format", unknown)
        self._form = read_format(form.get("format", {"type": "text"}), "text.format")
        if form.get("verbosity", "medium") != "medium":
            raise InvalidField("text.verbosity", "the model knows no verbosity; ask for it in a message")

    def _calls(self, *, several: bool) -> Grammar | None:
        return read_tool_choice(self.tool_choice, self._tools, several=several)

    def chat(self, defaults: Defaults, before: Sequence[dict[str, Any]] = ()) -> Asked:
        """Read what is asked.

        Args:
            defaults: The server's.
            before: The items of the chat that this one goes on from; they are read as if they were sent.

        Raises:
            InvalidField: Options that cannot be, or no messages.
        """
        messages = chat_of([*before, *self._items], Unknown(), len(before)) if before else self._messages
        messages = in_call_order(messages)
        if not messages:
            raise InvalidField("input", "expected at least one item, found none")
        if self.instructions is not None:
            messages = [{"role": "system", "content": self.instructions}, *messages]
        with told_as(reasoning_effort="reasoning.effort"):
            options: TemplateOptions = template_options(
                self.reasoning.get("effort"), self.chat_template_kwargs, defaults
            )
        return Asked(messages, self._tools if self.tool_choice != "none" and self._tools else None, options)


class ResponsesRequest(ResponsesPrompt, Drawn):
    """The honoured fields of a request for a response."""

    max_output_tokens: int | None = Field(None, ge=1)
    include: list[str] = Field([], fail_fast=True)
    top_logprobs: int | None = None
    parallel_tool_calls: bool = True
    thinking_budget: int | None = Field(None, ge=0)
    metadata: dict[str, Any] = {}
    store: bool = True
    stop: Any = None

    _told_back: bytes = PrivateAttr()

    @classmethod
    def read(cls, body: Mapping[str, Any], unknown: Unknown) -> Self:
        """Check a request's body.

        Raises:
            InvalidField: The first field that is refused, unknown where those are, or out of its range.
        """
        request = cls.check(body, RESPONSES, unknown)
        for i, name in enumerate(request.include):
            if name not in INCLUDED:
                raise InvalidField(
                    f"include[{i}]", f"expected one of {', '.join(INCLUDED)}, found {cut(repr(name), 80)}"
                )
        if request.top_logprobs and LOGPROBS not in request.include:
            raise InvalidField("top_logprobs", f'needs include: ["{LOGPROBS}"]')
        check_top_logprobs(request.top_logprobs, "top_logprobs")
        _check_metadata(request.metadata)
        request._understand(unknown)
        told = {
            "instructions": request.instructions,
            "text": {"format": {"type": "text"}, **_given(request.text)},
            "tool_choice": request.tool_choice,
            "tools": request.tools,
        }
        request._told_back = dumps(told, separators=(",", ":")).encode()
        return request

    @property
    def told_back(self) -> bytes:
        """What a response says of its request, as far as that can be long: an object in JSON."""
        return self._told_back

    @property
    def tells_logprobs(self) -> bool:
        """Whether log-probabilities are asked for."""
        return LOGPROBS in self.include

    @property
    def tells_sealed(self) -> bool:
        """Whether thoughts are asked for in a form that can be sent back unseen."""
        return SEALED in self.include

    def sampling(self, defaults: Defaults, context: int) -> Sampling:
        """Read how to draw, on a server with so large a context.

        Raises:
            InvalidField: A value out of its range.
        """
        cap = self.max_output_tokens
        several = self.parallel_tool_calls
        tools = self._tools if self.tool_choice != "none" else None
        return self.drawn(
            defaults,
            context,
            {} if cap is None else {"max_output_tokens": cap},
            stop=self.stop,
            logprobs=(self.top_logprobs or 0) if self.tells_logprobs else None,
            parallel_calls=self.parallel_tool_calls,
            thinking_budget=self.thinking_budget,
            grammar=either(self._calls(several=several), self._form, tools, several=several),
        )


class ResponsesCount(ResponsesPrompt):
    """What POST /v1/responses/input_tokens accepts."""

    model: str | None = None

    @classmethod
    def read(cls, body: Mapping[str, Any], unknown: Unknown, table: Table = RESPONSES_COUNT) -> Self:
        """Check a request's body.

        Raises:
            InvalidField: The first field that is refused, unknown where those are, or wrong.
        """
        request = checked(cls, honoured_fields(body, table, unknown))
        request._understand(unknown)
        return request


def _given(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _check_metadata(metadata: Mapping[str, Any]) -> None:
    """Keep what is told back, and kept, as small as it is on OpenAI's route."""
    if len(metadata) > MAX_METADATA:
        raise InvalidField("metadata", f"expected at most {MAX_METADATA} pairs, found {len(metadata)}")
    for key, value in metadata.items():
        if len(key) > MAX_METADATA_KEY:
            raise InvalidField(
                "metadata", f"a key may have {MAX_METADATA_KEY} characters, found {cut(repr(key), 80)}"
            )
        if not isinstance(value, str) or len(value) > MAX_METADATA_VALUE:
            raise InvalidField(
                f"metadata.{key}",
                f"expected text of at most {MAX_METADATA_VALUE} characters, found {cut(repr(value), 80)}",
            )
