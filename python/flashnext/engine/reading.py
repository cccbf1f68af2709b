"""From what a request brings to a prompt that the model reads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import numpy as np

from flashnext.engine.arguments import SHORT_TURNS, is_short
from flashnext.engine.chat_media import ChatMedia
from flashnext.engine.core import Tokens
from flashnext.engine.frame import Frame, MediaPrompt, See
from flashnext.engine.histories import Histories
from flashnext.engine.many import is_chat
from flashnext.engine.marks import Place, places
from flashnext.engine.reply import Chat, Said
from flashnext.media import Media
from flashnext.text.messages import InvalidField
from flashnext.text.template import ChatTemplate, TemplateOptions
from flashnext.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class ReadPrompt:
    """A prompt as the model reads it; requests may share one.

    Attributes:
        token_ids: What the model reads.
        tokens: (n,) int32, the same.
        chat: What is known of the reply where it is the turn of a chat.
        places: Where its marks lie.
        history: Takes what a reply says and has the chat read on, in the background.
        goes_on: Whether another prompt may begin with this one and its reply as it was drawn.
        frame: What it shows beside text; None where that is nothing.
    """

    token_ids: list[int]
    tokens: Tokens
    chat: Chat | None = None
    places: tuple[Place, ...] = ()
    history: Callable[[Said], None] | None = None
    goes_on: bool = True
    frame: Frame | None = None

    @property
    def media_bytes(self) -> int:
        """What it shows takes of memory, as long as somebody has the prompt or a request made of it."""
        shown = {id(media): media for _, media in self.frame.shown} if self.frame is not None else {}
        return sum(media.levels.nbytes for media in shown.values())


PromptLike = str | Sequence[int] | Sequence[Mapping[str, Any]] | MediaPrompt | ReadPrompt
Tools = Sequence[Mapping[str, Any]] | None


class Reader:
    """Reads the prompts of an engine. Its methods may be called from any thread.

    Attributes:
        media: Prepares what chats show.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        template: ChatTemplate,
        media: ChatMedia,
        histories: Histories | None,
    ) -> None:
        """Take what it reads with.

        Args:
            tokenizer: Of the checkpoint.
            template: Its chat template.
            media: Prepares what chats show.
            histories: Gets the chats that were answered; None where nothing is kept of prompts.
        """
        self.media = media
        self._tokenizer, self._template, self._histories = tokenizer, template, histories

    def read(self, prompt: PromptLike, tools: Tools, options: TemplateOptions | None) -> ReadPrompt:
        """Read a prompt, and wait until its pictures and videos are prepared.

        Raises:
            InvalidArgument: It cannot be read.
            EngineClosed: The engine was closed while they were prepared.
        """
        if is_chat(prompt):
            prompt = self.media.prepared(prompt)  # type: ignore[arg-type]
        return self.read_prepared(prompt, tools, options)

    async def read_async(
        self, prompt: PromptLike, tools: Tools, options: TemplateOptions | None
    ) -> ReadPrompt:
        """Do the same without holding up the event loop for long."""
        # A long chat takes a while to render and to tokenize, so the event loop does not do it itself; for a
        # short one, half a millisecond, the way to another thread and back would take longer.
        most_turns = SHORT_TURNS if self._histories is None else SHORT_TURNS // 4
        if isinstance(prompt, ReadPrompt) or (tools is None and is_short(prompt, most_turns)):
            return self.read_prepared(prompt, tools, options)
        if is_chat(prompt):
            prompt = await self.media.prepared_async(prompt)  # type: ignore[arg-type]
        return await asyncio.to_thread(self.read_prepared, prompt, tools, options)

    def read_prepared(self, prompt: PromptLike, tools: Tools, options: TemplateOptions | None) -> ReadPrompt:
        """Read a prompt whose pictures and videos are prepared, where it has any.

        Raises:
            InvalidArgument: It cannot be read.
        """
        if isinstance(prompt, ReadPrompt):
            return prompt
        media: Sequence[Media] = ()
        see: See | None = None
        if isinstance(prompt, MediaPrompt):
            media, see, prompt = prompt.media, prompt.see, prompt.token_ids
        if not isinstance(prompt, Sequence | np.ndarray) or isinstance(prompt, bytes | bytearray):
            raise InvalidField(
                "prompt",
                f"expected text, a list of token ids or a list of messages, found {type(prompt).__name__}",
            )
        if options is not None and not isinstance(options, TemplateOptions):
            raise InvalidField("options", f"expected TemplateOptions, found {type(options).__name__}")
        caches = self._histories is not None
        chat = turns = history = None
        if isinstance(prompt, str):
            ids = self._tokenizer.encode(prompt)
        elif is_chat(prompt):
            rendered = self._template.render(prompt, tools, options, turns=caches)  # type: ignore[arg-type]
            if not rendered.token_ids:
                raise InvalidField("messages", "the chat template makes nothing of them")
            ids, chat, turns = rendered.token_ids, Chat(rendered.in_thinking, tools), rendered.turns
            media = cast(Sequence[Media], rendered.media)
            if self._histories is not None:
                messages: list[Any] = list(prompt)
                history = partial(self._histories.add, messages, media, tools, options)
        else:
            ids = self._check_ids(prompt)  # type: ignore[arg-type]
        if chat is None and (tools or options):
            raise InvalidField("tools" if tools else "options", "only a prompt of messages can have them")
        if not ids:
            raise InvalidField("prompt", "expected at least one token, found none")
        at = places(len(ids), turns) if caches else ()
        # Behind a call, and that a reply may be where there are tools, its thoughts stay.
        goes_on = turns is None or turns.goes_on or bool(tools)
        tokens = np.asarray(ids, np.int32)
        frame = self.media.frame(tokens, media, see)
        return ReadPrompt(ids, tokens, chat, at, history, goes_on, frame)

    def check_id(self, field: str, token_id: Any) -> int:
        """Check that something is a token id.

        Raises:
            InvalidField: It is not.
        """
        whole = isinstance(token_id, int | np.integer) and not isinstance(token_id, bool)
        if not whole or not 0 <= token_id < self._tokenizer.n_tokens:
            raise InvalidField(
                field,
                f"expected a token id from 0 to {self._tokenizer.n_tokens - 1}, found {token_id!r}"[:200],
            )
        return int(token_id)

    def _check_ids(self, ids: Sequence[int]) -> list[int]:
        # Nearly always all of them are right, which is soon seen.
        if set(map(type, ids)) == {int} and min(ids) >= 0 and max(ids) < self._tokenizer.n_tokens:
            return list(ids)
        return [self.check_id(f"prompt[{i}]", token_id) for i, token_id in enumerate(ids)]
