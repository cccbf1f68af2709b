"""The checkpoint's chat template: messages and tools to the token ids of a prompt."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import jinja2

from flashnext.errors import CheckpointError, InvalidArgument
from flashnext.text.content import KINDS, Medium, chat_media, texts
from flashnext.text.media_names import MediaNames
from flashnext.text.messages import InvalidField, canonical_messages, canonical_tools
from flashnext.text.sandbox import TemplateEnvironment, TemplateRefusalError
from flashnext.text.tokenizer import Tokenizer, read_tokenizer_config
from flashnext.text.turns import Messages, Render, Turns, find_turns, stable_tokens
from flashnext.text.written import Written

RENDER_LIMIT_S = 10.0
_MAX_TEMPLATE_BYTES = 1024 * 1024
_SPECIAL_NAMES = ("bos_token", "eos_token", "pad_token", "unk_token")
_PROBE: list[dict[str, Any]] = [
    {"role": "system", "content": "s"},
    {"role": "user", "content": "u"},
    {
        "role": "assistant",
        "content": "a",
        "reasoning_content": "r",
        "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": {"x": "1"}}}],
    },
    {"role": "tool", "content": "t"},
    {"role": "assistant", "content": "a"},
    {"role": "user", "content": "u"},
]
_PROBE_TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]


@dataclass(frozen=True)
class TemplateOptions:
    """The options of the family's template; None leaves one to the template's own default.

    Attributes:
        enable_thinking: Whether the reply begins inside a `<think>` block.
        reasoning_effort: xhigh, medium or low; the template refuses others while thinking is on.
        preserve_thinking: Whether the thoughts of earlier turns stay in the prompt.
        add_vision_id: Whether pictures and videos are numbered.
    """

    enable_thinking: bool | None = None
    reasoning_effort: str | None = None
    preserve_thinking: bool | None = None
    add_vision_id: bool | None = None

    @classmethod
    def from_mapping(cls, options: Mapping[str, Any], field: str = "chat_template_kwargs") -> TemplateOptions:
        """Read options by name.

        Raises:
            InvalidField: An unknown option, or one of the wrong type.
        """
        known = {f.name: str if f.name == "reasoning_effort" else bool for f in fields(cls)}
        for name, value in options.items():
            if name not in known:
                raise InvalidField(f"{field}.{name}", f"unknown option; known are {', '.join(known)}")
            if value is not None and not isinstance(value, known[name]):
                kind = "text" if known[name] is str else "true or false"
                raise InvalidField(f"{field}.{name}", f"expected {kind}, found {value!r}"[:200])
        return cls(**options)


@dataclass(frozen=True)
class Prompt:
    """A rendered prompt.

    Attributes:
        token_ids: What the model reads.
        text: The same as text, for people; two different prompts may look alike in it, and of pads next to
            each other there is one.
        in_thinking: Whether the reply begins inside a `<think>` block.
        turns: Where it may be cut, if that was asked for.
        media: The pictures and videos that it shows, in this order.
    """

    token_ids: list[int]
    text: str
    in_thinking: bool
    turns: Turns | None = None
    media: tuple[Medium, ...] = ()


class ChatTemplate:
    """A compiled chat template. May be used by several threads at once.

    Control tokens come from the template's own text alone. Whatever a request brings (message text,
    reasoning, names, tool schemas, arguments and results) is ordinary text, also where it spells a control
    token or completes half of one. So pads, too, are pictures only where the template has written them.

    Attributes:
        source: The template's own text.
    """

    def __init__(
        self,
        source: str,
        tokenizer: Tokenizer,
        *,
        special_tokens: Mapping[str, str] | None = None,
        now: Callable[[], datetime] = datetime.now,
        limit_s: float = RENDER_LIMIT_S,
    ) -> None:
        """Compile a template and try it on a small chat.

        Args:
            source: Jinja source.
            tokenizer: Of the same checkpoint.
            special_tokens: `bos_token` and the like, as the template may name them.
            now: The clock behind strftime_now.
            limit_s: Processor seconds that one rendering may take.

        Raises:
            CheckpointError: The template does not compile, or builds control tokens in a way that cannot be
                told from text of the request.
        """
        self.source = source
        self._tokenizer = tokenizer
        self._environment = TemplateEnvironment(now, limit_s)
        self._orders: dict[str, bool] = {}  # whether pictures, and videos, are written where they stand
        self._special_tokens = {name: Written.all_of(text) for name, text in (special_tokens or {}).items()}
        try:
            self._template = self._environment.from_string(source)
        except (jinja2.TemplateError, RecursionError, SyntaxError, MemoryError) as e:
            raise CheckpointError(f"chat template: does not compile: {e}") from None
        self._probe()

    @classmethod
    def from_folder(
        cls, folder: str | Path, tokenizer: Tokenizer, *, now: Callable[[], datetime] = datetime.now
    ) -> ChatTemplate:
        """Read chat_template.jinja, or else the entry `chat_template` of tokenizer_config.json.

        Raises:
            CheckpointError: There is none, or it cannot be used.
        """
        config = read_tokenizer_config(folder)
        path = Path(folder) / "chat_template.jinja"
        if path.is_file():
            if path.stat().st_size > _MAX_TEMPLATE_BYTES:
                raise CheckpointError(
                    f"{path}: {path.stat().st_size} bytes, the limit is {_MAX_TEMPLATE_BYTES}"
                )
            try:
                source: Any = path.read_text(encoding="utf-8")
            except UnicodeDecodeError as e:
                raise CheckpointError(f"{path}: not UTF-8: {e}") from None
            except OSError as e:
                raise CheckpointError(f"{path}: cannot be read: {e.strerror}") from None
        else:
            source = config.get("chat_template")
            if isinstance(source, list):
                named = (t for t in source if isinstance(t, Mapping))
                source = next((t.get("template") for t in named if t.get("name") == "default"), None)
        if not isinstance(source, str):
            raise CheckpointError(
                f"{folder}: no chat template (chat_template.jinja, or in tokenizer_config.json)"
            )
        special: dict[str, str] = {}
        for name in _SPECIAL_NAMES:
            token: Any = config.get(name)
            token = token.get("content") if isinstance(token, dict) else token
            if isinstance(token, str):
                special[name] = token
        return cls(source, tokenizer, special_tokens=special, now=now)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        options: TemplateOptions | None = None,
        *,
        turns: bool = False,
    ) -> Prompt:
        """Write the prompt for the assistant's next turn.

        Args:
            messages: A chat in OpenAI's form; made canonical here (`canonical_messages`).
            tools: Tools in OpenAI's form.
            options: Options of the template.
            turns: Find where the prompt may be cut too, which takes some more renderings.

        Raises:
            InvalidField: A message or a tool cannot be read.
            InvalidArgument: The template refuses the chat, fails on it, or takes too long.
        """
        chat = canonical_messages(messages)
        names = MediaNames(self._tokenizer.control_ids)
        render = self._renderer(chat, tools, options, names)
        text = render(chat)
        ids, edges = self._tokenizer.encode_with_edges(text, names.ids)
        found = find_turns(render, chat, text, edges) if turns else None
        shown = names.told(text.plain())
        return Prompt(ids, shown, self.ends_in_thinking(ids), found, tuple(chat_media(chat)))

    def history(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        options: TemplateOptions | None = None,
    ) -> list[int]:
        """Write what every prompt begins with that goes on behind a chat's newest reply.

        Args:
            messages: The chat; the last message is the assistant's.
            tools: Tools in OpenAI's form.
            options: Options of the template.

        Raises:
            InvalidArgument: As `render`.
        """
        chat = canonical_messages(messages)
        names = MediaNames(self._tokenizer.control_ids)
        render = self._renderer(chat, tools, options, names)
        return stable_tokens(render, chat, partial(self._tokenizer.encode_with_edges, named=names.ids))

    def _renderer(
        self,
        chat: Messages,
        tools: Sequence[Mapping[str, Any]] | None,
        options: TemplateOptions | None,
        names: MediaNames,
    ) -> Render:
        """Make what writes this chat and its parts, with their pictures and videos in their places."""
        written = partial(self._render, tools=canonical_tools(tools), options=options or TemplateOptions())
        kinds = {medium.kind for medium in chat_media(chat)}
        if not kinds:
            return written
        for kind in kinds:
            self._require_order(kind)

        def render(messages: Messages) -> Written:
            return names.fill(written(messages), chat_media(messages))

        return render

    def _require_order(self, kind: str) -> None:
        """Try once whether pictures, or videos, are written where they stand; two look alike in a text.

        Raises:
            InvalidField: They are not.
        """
        if kind not in self._orders:
            self._orders[kind] = self._keeps_order(kind)
        if not self._orders[kind]:
            raise InvalidField(
                "messages",
                f"this checkpoint's chat template does not write each {kind} where it stands in a message",
            )

    def _keeps_order(self, kind: str) -> bool:
        words = [f"word{i}" for i in range(5)]
        first, second = ([{"type": "text", "text": word} for word in part] for part in (words[:3], words[3:]))
        shown = {"type": kind, kind: ""}
        chat: Messages = [
            {"role": "user", "content": [first[0], shown, first[1], shown, first[2]]},
            {"role": "assistant", "content": "a"},
            {"role": "user", "content": [shown, second[0], second[1]]},
        ]
        try:
            text = self._render(chat, tools=None, options=TemplateOptions())
        except InvalidArgument:
            return False
        pad = f"<|{kind}_pad|>"
        expected = [words[0], pad, words[1], pad, words[2], pad, words[3], words[4]]
        return re.findall("|".join(map(re.escape, [*words, pad])), text.plain()) == expected

    def _render(self, messages: Messages, tools: Any, options: TemplateOptions) -> Written:
        try:
            return self._run(messages, tools, options)
        except TemplateRefusalError as e:
            refusal = e
        # Some templates of the family want one system message, the first, and at least one question by the
        # user. Chats that are otherwise are served all the same: as the template would have written them.
        late = [i for i, m in enumerate(messages) if m["role"] == "system" and i > 0]
        for stand_in in (False, True) if late else (True,):
            try:
                return self._run_repaired(messages, late, stand_in, tools, options)
            except TemplateRefusalError as e:
                refusal = e
        raise InvalidField("messages", f"the chat template refuses them: {refusal.message}")

    def _run(self, messages: Messages, tools: Any, options: TemplateOptions) -> Written:
        given = {
            f.name: getattr(options, f.name) for f in fields(options) if getattr(options, f.name) is not None
        }
        self._environment.start_rendering()
        try:
            text = self._template.render(
                self._special_tokens,
                messages=[_for_template(message) for message in messages],
                tools=tools,
                add_generation_prompt=True,
                **given,
            )
        except (TemplateRefusalError, InvalidArgument):
            raise
        except RecursionError:
            raise InvalidArgument("the chat template recurses too deeply on this chat") from None
        except Exception as e:  # a template is a program from elsewhere, and may fail in any way
            raise InvalidArgument(f"the chat template fails on this chat: {type(e).__name__}: {e}") from None
        return text if isinstance(text, Written) else Written(text)

    def _run_repaired(
        self,
        messages: Messages,
        late: list[int],
        stand_in: bool,
        tools: Any,
        options: TemplateOptions,
    ) -> Written:
        """Render late system turns as user turns, add a user turn where none counts, then put them right.

        A late system turn is wrapped as a tool response, so that it does not count as the newest question.
        The turn that stands in for a question comes after a first system message, and is cut out again.
        """
        mark = "turn"
        while any(mark in text for m in messages for text in texts(m["content"])):
            mark += "+"
        turns = list(messages)
        marked: dict[
            str, str | None
        ] = {}  # the content of a marked turn, and of the system turn in whose place it stands
        for i in late:
            marked[f"<tool_response>{mark} {i}</tool_response>"] = messages[i]["content"].strip()
            turns[i] = {"role": "user", "content": f"<tool_response>{mark} {i}</tool_response>"}
        if stand_in:
            marked[mark] = None
            turns.insert(1 if turns[0]["role"] == "system" else 0, {"role": "user", "content": mark})
        text = self._run(turns, tools, options)
        tail = "<|im_end|>\n"
        for content, system in marked.items():
            turn = f"<|im_start|>user\n{content}{tail}"
            head, found, rest = text.partition(turn)
            if not found:
                raise TemplateRefusalError("it cannot place a system message after the first turn")
            place = (
                []
                if system is None
                else [Written.all_of("<|im_start|>system\n"), system, Written.all_of(tail)]
            )
            text = Written.concat([head, *place, rest])
        return text

    def ends_in_thinking(self, ids: Sequence[int]) -> bool:
        """Whether a reply to this prompt begins inside a `<think>` block."""
        for token_id in reversed(ids):
            spelling = self._tokenizer.control_spelling(token_id)
            if spelling is not None:
                return spelling == "<think>"
        return False

    def _probe(self) -> None:
        """Refuse a template that loses control tokens, by comparing with a reading that trusts all text."""
        for tools in (None, _PROBE_TOOLS):
            for thinking in (None, False):
                try:
                    text = self._render(
                        _PROBE, tools=tools, options=TemplateOptions(enable_thinking=thinking)
                    )
                except InvalidArgument as e:
                    raise CheckpointError(f"chat template: fails on a plain chat: {e}") from None
                if self._tokenizer.encode_written(text) != self._tokenizer.encode_written(
                    Written.all_of(text.plain())
                ):
                    raise CheckpointError(
                        "chat template: it builds control tokens by operations that are not followed, "
                        "so they could not be told from text of a request"
                    )


def _for_template(message: dict[str, Any]) -> dict[str, Any]:
    """Show the template which parts are pictures and videos, and nothing of what they are."""
    if isinstance(message["content"], str):
        return message
    parts = [
        {"type": kind, kind: kind} if (kind := part["type"]) in KINDS else part for part in message["content"]
    ]
    return message | {"content": parts}
