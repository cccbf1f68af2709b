"""Every field of every route that takes a body: honoured, harmless, or refused by its name with a reason.

`docs/api.md` has the same tables; a test compares them.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

from flashnext.text.messages import InvalidField

_log = logging.getLogger("flashnext.server")

_NUMBER = re.compile(r"[0-9]+")
_HEAD = re.compile(r"\w+")

Kind = Literal["honoured", "harmless", "refused"]


@dataclass(frozen=True)
class Rule:
    """What happens to a field.

    Attributes:
        note: Of a refused field, why and what to do instead.
        neutral: Values of a refused field that ask for nothing and are accepted.
    """

    kind: Kind
    note: str = ""
    neutral: tuple[Any, ...] = ()


Table = Mapping[str, Rule]


def _honoured(*names: str) -> dict[str, Rule]:
    return {name: Rule("honoured") for name in names}


def _harmless(*names: str) -> dict[str, Rule]:
    return {name: Rule("harmless") for name in names}


# What every route has that draws replies.
_DRAWN = _honoured(
    *("model", "stream", "seed", "temperature", "top_p", "top_k", "min_p"),
    *("frequency_penalty", "presence_penalty", "repetition_penalty", "logit_bias"),
    *("ignore_eos", "min_tokens", "stop_token_ids"),
    *("cache", "draft", "priority", "return_token_ids"),
)
_SAMPLING = {**_DRAWN, **_honoured("stream_options", "n", "max_tokens", "stop", "logprobs")}
_NO_EFFECT = _harmless("cache_prompt", "metadata", "service_tier", "store", "user")
_GRAMMAR = _honoured(
    *("response_format", "structured_outputs"),
    *("guided_choice", "guided_grammar", "guided_json", "guided_regex"),
)

CHAT: Table = {
    **_SAMPLING,
    **_honoured(
        *("messages", "tools", "tool_choice", "parallel_tool_calls", "top_logprobs"),
        *("max_completion_tokens", "reasoning_effort", "chat_template_kwargs", "thinking_budget"),
    ),
    **_NO_EFFECT,
    **_harmless("prompt_cache_key", "prompt_cache_options", "prompt_cache_retention", "safety_identifier"),
    **_GRAMMAR,
    "audio": Rule("refused", "this model writes text only"),
    "function_call": Rule("refused", "give tool_choice", ("none", "auto")),
    "functions": Rule("refused", "give tools", ([],)),
    "modalities": Rule("refused", "this model writes text only", (["text"],)),
    "moderation": Rule("refused", "there is no moderation here"),
    "prediction": Rule("refused", "not supported yet; text of the prompt is copied without it"),
    "verbosity": Rule("refused", "the model knows no verbosity; ask for it in a message", ("medium",)),
    "web_search_options": Rule("refused", "this server searches nothing"),
}

COMPLETIONS: Table = {
    **_SAMPLING,
    **_honoured("prompt", "echo"),
    **_NO_EFFECT,
    **_harmless("add_special_tokens"),
    **_GRAMMAR,
    "best_of": Rule("refused", "give n, and choose among the replies", (1,)),
    "suffix": Rule("refused", "the model does not fill in the middle", ("",)),
}

_PROMPT_CACHE = _harmless("prompt_cache_key", "prompt_cache_options", "prompt_cache_retention")
_UNTRUNCATED = Rule("refused", "nothing is left out of an input; send less of it", ("disabled",))
_CONVERSATION = Rule("refused", "conversations are not kept; give previous_response_id")

RESPONSES_COUNT: Table = {
    **_honoured("model", "input", "instructions", "previous_response_id", "tools", "tool_choice"),
    **_honoured("reasoning", "text", "chat_template_kwargs"),
    **_harmless("parallel_tool_calls"),
    "conversation": _CONVERSATION,
    "personality": Rule("refused", "the model knows none; say it in instructions"),
    "truncation": _UNTRUNCATED,
}

RESPONSES: Table = {
    **_DRAWN,
    **_honoured("input", "instructions", "previous_response_id", "tools", "tool_choice"),
    **_honoured("reasoning", "text", "chat_template_kwargs", "max_output_tokens", "include"),
    **_honoured("top_logprobs", "parallel_tool_calls", "thinking_budget", "metadata", "store", "stop"),
    **_PROMPT_CACHE,
    **_harmless("safety_identifier", "service_tier", "user", "stream_options", "max_tool_calls"),
    **_harmless("access_programs", "background_options", "cache_prompt", "image"),
    "background": Rule("refused", "a response is told where it is asked for; leave it out", (False,)),
    "context_management": Rule("refused", "nothing of a context is compacted here", ([],)),
    "conversation": _CONVERSATION,
    "moderation": Rule("refused", "there is no moderation here"),
    "prompt": Rule("refused", "there are no templates here; give instructions and input"),
    **{name: Rule("refused", "give text.format") for name in _GRAMMAR},
    "response_format": Rule("refused", "give text.format", ({"type": "text"},)),
    "truncation": _UNTRUNCATED,
}

_MESSAGES = _honoured(
    *("model", "messages", "system", "tools", "tool_choice", "thinking", "output_config"),
    "chat_template_kwargs",
)
_MESSAGES_NO_EFFECT = _harmless(
    "cache_control", "context_management", "speed", "user_profile_id", "workspace_id"
)

MESSAGES_COUNT: Table = {
    **_MESSAGES,
    **_MESSAGES_NO_EFFECT,
    "mcp_servers": Rule("refused", "this server runs no tools", ([],)),
}

MESSAGES: Table = {
    **_DRAWN,
    **_MESSAGES,
    **_honoured("max_tokens", "stop_sequences"),
    **_MESSAGES_NO_EFFECT,
    **_harmless("metadata", "service_tier", "inference_geo", "diagnostics"),
    "container": Rule("refused", "this server runs no code"),
    "mcp_servers": Rule("refused", "this server runs no tools", ([],)),
    "output_format": Rule("refused", "give output_config.format"),
}

# Of one message of a chat, whatever the route; `text.messages` reads and refuses them.
MESSAGE: Table = {
    **_honoured("role", "content", "refusal", "reasoning_content", "reasoning", "tool_calls"),
    **_harmless("name", "tool_call_id", "annotations"),
    "audio": Rule("refused"),
    "function_call": Rule("refused"),
}

TOKENIZE: Table = {
    **_honoured("model", "prompt", "messages", "tools", "tool_choice", "reasoning_effort"),
    **_honoured("chat_template_kwargs", "return_token_strs"),
    **_harmless("add_special_tokens"),
    "add_generation_prompt": Rule("refused", "a prompt always asks for the next reply", (True,)),
}

DETOKENIZE: Table = _honoured("model", "tokens")


class Unknown:
    """What is done about fields that no table has: a warning in the log, one for each, or a refusal."""

    def __init__(self, strict: bool = False) -> None:
        """Refuse them where `strict`."""
        self._strict = strict
        self._told: set[str] = set()

    def meet(self, name: str, kind: str = "") -> None:
        """Meet an unknown field.

        Args:
            name: Of the field.
            kind: Under what name to warn of it, and of all like it; by default its own.

        Raises:
            InvalidField: Unknown fields are refused.
        """
        if self._strict:
            raise InvalidField(
                name, "unknown field; leave it out, or start the server without --strict-fields"
            )
        kind = kind or name
        if kind not in self._told and len(self._told) < 1000:
            self._told.add(kind)
            _log.warning("the field %s is unknown and has no effect; told once", ascii(kind)[1:-1][:200])


def honoured_fields(body: Mapping[str, Any], table: Table, unknown: Unknown) -> dict[str, Any]:
    """Pick the fields that are honoured. A field that is null counts as absent.

    Raises:
        InvalidField: A field that is refused, or an unknown one where those are.
    """
    _require_question(body, table)
    found: dict[str, Any] = {}
    for name, value in body.items():
        if value is None:
            continue
        rule = table.get(name)
        if rule is None:
            unknown.meet(name)
        elif rule.kind == "honoured":
            found[name] = value
        elif rule.kind == "refused" and not any(_same(value, neutral) for neutral in rule.neutral):
            raise InvalidField(name, rule.note)
    return found


# What is asked, which each route has under a name of its own, and the routes that have it.
_QUESTIONS = {
    "messages": "/v1/chat/completions and /v1/messages",
    "prompt": "/v1/completions",
    "input": "/v1/responses",
}


def _require_question(body: Mapping[str, Any], table: Table) -> None:
    """Refuse a body that asks under the name of another route, and not under the one of its own.

    Raises:
        InvalidField: It does.
    """
    own = [name for name in _QUESTIONS if name in table and table[name].kind == "honoured"]
    if not own or any(body.get(name) is not None for name in own):
        return
    for name, routes in _QUESTIONS.items():
        if name not in table and body.get(name) is not None:
            raise InvalidField(
                own[0], f"missing; this route reads {' or '.join(own)}, and {name} belongs to {routes}"
            )


@contextmanager
def told_as(**names: str) -> Iterator[None]:
    """Tell what is wrong under the names that the route has for fields.

    Args:
        names: What stands for each field, in whose way the error may go on: `messages="input"`.

    Raises:
        InvalidField: There was one in the block.
    """
    try:
        yield
    except InvalidField as error:
        found = _HEAD.match(error.field)
        head = found.group() if found else ""
        if head not in names:
            raise
        raise type(error)(names[head] + error.field.removeprefix(head), error.problem) from None


def _same(value: Any, neutral: Any) -> bool:
    return value == neutral and isinstance(value, bool) == isinstance(neutral, bool)


PARTS = (
    *("type", "text", "refusal", "annotations", "citations", "logprobs", "id", "index"),
    *("cache_control", "prompt_cache_breakpoint", "provider_specific_fields"),
)
"""Fields of the parts of texts that have no effect, or say what the part is."""
_TEXTS = ("text", "refusal")


def know(value: Any, known: Sequence[str], field: str, unknown: Unknown) -> None:
    """Look for unknown fields of an object; of what is none somebody else complains.

    Raises:
        InvalidField: There is one, where those are refused.
    """
    for name, found in value.items() if isinstance(value, Mapping) else ():
        if found is not None and name not in known:
            unknown.meet(f"{field}.{name}", f"{_NUMBER.sub('', field)}.{name}")


def know_messages(messages: Sequence[Mapping[str, Any]], unknown: Unknown) -> None:
    """Look for unknown fields in the messages of a chat.

    Raises:
        InvalidField: There is one, where those are refused.
    """
    for i, message in enumerate(messages):
        field = f"messages[{i}]"
        know(message, tuple(MESSAGE), field, unknown)
        for name, known in (("content", PARTS), ("tool_calls", ("id", "type", "function", "index"))):
            listed = message.get(name)
            for j, one in enumerate(listed if isinstance(listed, list) else ()):
                if not isinstance(one, Mapping):
                    continue
                if one.get("type") not in _TEXTS if known is PARTS else not one.get("function"):
                    continue  # which is refused for what it is
                know(one, known, f"{field}.{name}[{j}]", unknown)
                know(one.get("function"), ("name", "arguments"), f"{field}.{name}[{j}].function", unknown)


def known_options(
    options: Mapping[str, Any], field: str, known: Sequence[str], harmless: Sequence[str], unknown: Unknown
) -> dict[str, Any]:
    """Pick the known entries of a nested object, in the same way."""
    found: dict[str, Any] = {}
    for name, value in options.items():
        if value is None or name in harmless:
            continue
        if name in known:
            found[name] = value
        else:
            unknown.meet(f"{field}.{name}")
    return found
