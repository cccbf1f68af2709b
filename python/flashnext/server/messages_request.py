"""What POST /v1/messages accepts; see `fields.MESSAGES` for all of its fields."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr

from flashnext.engine.sampling import Sampling
from flashnext.grammar import Grammar
from flashnext.server.chat_form import function_tools, in_call_order
from flashnext.server.chat_request import Asked, template_options
from flashnext.server.drawing import Drawn, checked
from flashnext.server.fields import (
    MESSAGES,
    MESSAGES_COUNT,
    Unknown,
    honoured_fields,
    known_options,
    told_as,
)
from flashnext.server.messages_blocks import chat_of, system_of
from flashnext.server.settings import Defaults
from flashnext.server.structured import either, know_format, read_format, read_tool_choice
from flashnext.text.messages import InvalidField, cut

TOOL = (
    *("type", "name", "description", "input_schema", "cache_control", "strict", "input_examples"),
    *("allowed_callers", "defer_loading", "eager_input_streaming"),
)
"""Fields of a tool."""
_EFFORTS = ("low", "medium", "high", "xhigh", "max")
_CHOICES = ("auto", "any", "tool", "none")
_THINKING = ("enabled", "adaptive", "disabled")
_DISPLAYS = ("summarized", "omitted")


class MessagesPrompt(BaseModel):
    """The fields that decide what a prompt is, wherever it is asked for."""

    model_config = ConfigDict(extra="forbid", strict=True)

    model: str = Field(min_length=1)
    messages: list[dict[str, Any]] = Field(min_length=1, fail_fast=True)
    system: Any = None
    tools: list[Any] = Field([], fail_fast=True)
    tool_choice: dict[str, Any] = {"type": "auto"}
    thinking: dict[str, Any] = {"type": "disabled"}
    output_config: dict[str, Any] = {}
    chat_template_kwargs: dict[str, Any] = {}

    _messages: list[dict[str, Any]] = PrivateAttr()
    _tools: list[Any] = PrivateAttr()
    _one_call: bool = PrivateAttr(False)
    _calls: Grammar | None = PrivateAttr(None)
    _form: Grammar | None = PrivateAttr(None)

    def _understand(self, unknown: Unknown) -> None:
        """Read all that has parts of its own.

        Raises:
            InvalidField: Something that cannot be read, or asks for what there is not.
        """
        self._messages = in_call_order([*system_of(self.system, unknown), *chat_of(self.messages, unknown)])
        tools = function_tools(self.tools, "custom", "input_schema", TOOL, unknown)
        choice = known_options(
            self.tool_choice, "tool_choice", ("type", "disable_parallel_tool_use", "name"), (), unknown
        )
        _require(choice.get("type"), _CHOICES, "tool_choice.type")
        self._tools = tools if choice["type"] != "none" else []
        self._one_call = choice.get("disable_parallel_tool_use", False)
        if not isinstance(self._one_call, bool):
            raise InvalidField(
                "tool_choice.disable_parallel_tool_use",
                f"expected true or false, found {cut(repr(self._one_call), 80)}",
            )
        if choice["type"] == "tool" and not isinstance(choice.get("name"), str):
            raise InvalidField(
                "tool_choice.name", f"expected the name of a tool, found {cut(repr(choice.get('name')), 80)}"
            )
        named = {"type": "function", "name": choice.get("name")}
        asked = {"any": "required", "tool": named}.get(choice["type"], choice["type"])
        self._calls = read_tool_choice(asked, self._tools, several=not self._one_call)
        thinking = known_options(self.thinking, "thinking", ("type", "budget_tokens", "display"), (), unknown)
        _require(thinking.get("type"), _THINKING, "thinking.type")
        _require(thinking.get("display", "summarized"), _DISPLAYS, "thinking.display")
        budget = thinking.get("budget_tokens", 0 if thinking["type"] != "enabled" else None)
        if isinstance(budget, bool) or not isinstance(budget, int) or budget < 0:
            raise InvalidField(
                "thinking.budget_tokens", f"expected a whole number from 0, found {cut(repr(budget), 80)}"
            )
        form = known_options(self.output_config, "output_config", ("effort", "format"), (), unknown)
        know_format(form.get("format"), "output_config.format", unknown)
        self._form = read_format(form.get("format", {"type": "text"}), "output_config.format")
        _require(form.get("effort", "high"), _EFFORTS, "output_config.effort")

    @property
    def thinks(self) -> bool:
        """Whether thoughts are asked for."""
        return bool(self.thinking["type"] != "disabled")

    @property
    def hides_thoughts(self) -> bool:
        """Whether they are to be told sealed."""
        return bool(self.thinking.get("display") == "omitted")

    def chat(self) -> Asked:
        """Read what is asked.

        Raises:
            InvalidField: Options of the template that cannot be.
        """
        effort = self.output_config.get("effort") if self.thinks else None
        with told_as(reasoning_effort="output_config.effort"):
            options = template_options(
                effort, {"enable_thinking": self.thinks, **self.chat_template_kwargs}, Defaults()
            )
        return Asked(self._messages, self._tools or None, options)


class MessagesRequest(MessagesPrompt, Drawn):
    """The honoured fields of a request for a message."""

    max_tokens: int = Field(ge=1)
    stop_sequences: list[Any] = Field([], fail_fast=True)

    @classmethod
    def read(cls, body: Mapping[str, Any], unknown: Unknown) -> Self:
        """Check a request's body.

        Raises:
            InvalidField: The first field that is refused, unknown where those are, or out of its range.
        """
        request = cls.check(body, MESSAGES, unknown)
        request._understand(unknown)
        return request

    def sampling(self, defaults: Defaults, context: int) -> Sampling:
        """Read how to draw, on a server with so large a context.

        Clients of this route always name a cap, often one for a larger model, so one beyond the context means
        what the context leaves.

        Raises:
            InvalidField: A value out of its range.
        """
        budget = self.thinking.get("budget_tokens") if self.thinking["type"] == "enabled" else None
        with told_as(stop="stop_sequences", thinking_budget="thinking.budget_tokens"):
            return self.drawn(
                defaults,
                context,
                {"max_tokens": min(self.max_tokens, context)},
                stop=self.stop_sequences,
                parallel_calls=not self._one_call,
                thinking_budget=budget,
                grammar=either(self._calls, self._form, self._tools, several=not self._one_call),
            )


class MessagesCount(MessagesPrompt):
    """What POST /v1/messages/count_tokens accepts."""

    @classmethod
    def read(cls, body: Mapping[str, Any], unknown: Unknown) -> Self:
        """Check a request's body.

        Raises:
            InvalidField: The first field that is refused, unknown where those are, or wrong.
        """
        request = checked(cls, honoured_fields(body, MESSAGES_COUNT, unknown))
        request._understand(unknown)
        return request


def _require(value: Any, known: tuple[str, ...], field: str) -> None:
    if value not in known:
        raise InvalidField(field, f"expected one of {', '.join(known)}, found {cut(repr(value), 80)}")
