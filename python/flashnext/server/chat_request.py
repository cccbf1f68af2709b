"""What POST /v1/chat/completions accepts; see `fields.CHAT` for all of its fields."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from flashnext.engine.sampling import Sampling
from flashnext.grammar import Grammar
from flashnext.server.drawing import Drawing, check_top_logprobs
from flashnext.server.fields import CHAT, Unknown, know_messages
from flashnext.server.settings import Defaults
from flashnext.server.shown import know_shown
from flashnext.server.structured import either, know_choice, read_tool_choice
from flashnext.text.messages import InvalidField
from flashnext.text.template import TemplateOptions

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]

# What the model was trained with, for each of OpenAI's names; "none" does not think at all.
_EFFORTS = {
    "minimal": "low",
    "low": "low",
    "medium": "medium",
    "high": "xhigh",
    "xhigh": "xhigh",
    "max": "xhigh",
}


@dataclass(frozen=True)
class Asked:
    """A chat whose next turn is asked for, whatever route it came by.

    Attributes:
        messages: In the form of chat completions, as are the tools.
        tools: What the prompt shows and what can be called.
        options: Of the chat template.
    """

    messages: list[dict[str, Any]]
    tools: list[Any] | None
    options: TemplateOptions


class ChatPrompt(BaseModel):
    """The fields beside the messages that decide what a chat's prompt is, wherever it is asked for."""

    model_config = ConfigDict(extra="forbid", strict=True)

    tools: list[Any] | None = None
    tool_choice: Any = "auto"
    reasoning_effort: Effort | None = None
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)

    @property
    def template_tools(self) -> list[Any] | None:
        """The tools that the prompt shows and that can be called; none with `tool_choice` "none".

        Raises:
            InvalidField: Another choice.
        """
        self.required_calls(several=True)
        return self.tools if self.tools and self.tool_choice != "none" else None

    def required_calls(self, *, several: bool) -> Grammar | None:
        """Read which tools a reply has to call; None where it need not call any.

        Raises:
            InvalidField: No choice, or a tool that is not there.
        """
        return read_tool_choice(self.tool_choice, self.tools, several=several)

    def options(self, defaults: Defaults) -> TemplateOptions:
        """Read the options of the chat template.

        Raises:
            InvalidField: An unknown option, a wrong value, or two that contradict each other.
        """
        return template_options(self.reasoning_effort, self.chat_template_kwargs, defaults)


def template_options(effort: str | None, kwargs: Mapping[str, Any], defaults: Defaults) -> TemplateOptions:
    """Read the options of the chat template.

    Args:
        effort: One of OpenAI's words; None where the request has none.
        kwargs: The field `chat_template_kwargs`.
        defaults: The server's.

    Raises:
        InvalidField: An unknown option, a wrong value, or two that contradict each other.
    """
    options = TemplateOptions.from_mapping(kwargs)
    if effort is not None:
        known = _EFFORTS.get(effort)
        if options.reasoning_effort not in (None, known):
            raise InvalidField(
                "reasoning_effort", "chat_template_kwargs.reasoning_effort says otherwise; give one of them"
            )
        if known is None and options.enable_thinking:
            raise InvalidField(
                "reasoning_effort", '"none" and chat_template_kwargs.enable_thinking contradict each other'
            )
        thinking = False if known is None else options.enable_thinking
        options = replace(options, reasoning_effort=known, enable_thinking=thinking)
    if options.enable_thinking is None and not defaults.thinking:
        asks = effort is not None or options.reasoning_effort is not None
        options = replace(options, enable_thinking=asks)
    return options


class ChatRequest(ChatPrompt, Drawing):
    """The honoured fields. Messages, tools and template options are checked where they are used."""

    messages: list[dict[str, Any]] = Field(min_length=1, fail_fast=True)
    max_completion_tokens: int | None = Field(None, ge=1)
    logprobs: bool = False
    top_logprobs: int | None = None
    parallel_tool_calls: bool = True
    thinking_budget: int | None = Field(None, ge=0)

    @classmethod
    def read(cls, body: Mapping[str, Any], unknown: Unknown) -> ChatRequest:
        """Check a request's body.

        Raises:
            InvalidField: The first field that is refused, unknown where those are, or out of its range.
        """
        request = cls.check(body, CHAT, unknown)
        know_messages(request.messages, unknown)
        know_shown(request.messages, unknown)
        know_choice(request.tool_choice, unknown)
        if request.top_logprobs and not request.logprobs:
            raise InvalidField("top_logprobs", "needs logprobs: true")
        check_top_logprobs(request.top_logprobs, "top_logprobs")
        return request

    def chat(self, defaults: Defaults) -> Asked:
        """Read what is asked, under the server's defaults.

        Raises:
            InvalidField: Tools or options that cannot be.
        """
        return Asked(self.messages, self.template_tools, self.options(defaults))

    def sampling(self, defaults: Defaults, context: int) -> Sampling:
        """Read how to draw, on a server with so large a context.

        Raises:
            InvalidField: A value out of its range, or two different limits.
        """
        both = {"max_tokens": self.max_tokens, "max_completion_tokens": self.max_completion_tokens}
        caps = {name: cap for name, cap in both.items() if cap is not None}
        if len(set(caps.values())) > 1:
            raise InvalidField("max_tokens", "max_completion_tokens says otherwise; give one of them")
        calls = self.required_calls(several=self.parallel_tool_calls)
        tools = self.tools if self.tool_choice != "none" else None
        return self.drawn(
            defaults,
            context,
            caps,
            grammar=either(calls, self.grammar(), tools, several=self.parallel_tool_calls),
            stop=self.stop,
            logprobs=(self.top_logprobs or 0) if self.logprobs else None,
            parallel_calls=self.parallel_tool_calls,
            thinking_budget=self.thinking_budget,
        )
