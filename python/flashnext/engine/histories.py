"""From the end of a chat's reply to a warm pass: its history as template and tokenizer will render it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakSet

import numpy as np

from flashnext.engine.core import Tokens
from flashnext.engine.frame import Frame
from flashnext.engine.helper import Helper
from flashnext.engine.marks import Kind, Place, places
from flashnext.engine.reply import Said
from flashnext.engine.warm import MOST_WAITING, WarmPass
from flashnext.errors import FlashnextError
from flashnext.media import Media
from flashnext.text.template import ChatTemplate, TemplateOptions

MOST_MEDIA_BYTES = 256 * 2**20
"""Of pictures and videos that histories keep while they wait, to be rendered or to be read."""


@dataclass(eq=False)
class _Shown:
    """What a history that waits to be rendered shows."""

    media: Sequence[Media]


class Histories:
    """Renders histories in a thread of its own, since a long one takes a while.

    A history shows what its chat shows, and keeps it until it has been read: megabytes for a picture, where
    text is next to nothing. One that would make it more than MOST_MEDIA_BYTES for all that wait is left out.
    """

    def __init__(
        self,
        template: ChatTemplate,
        context: int,
        frame: Callable[[Tokens, Sequence[Media]], Frame | None],
        wanted: Callable[[WarmPass], object],
    ) -> None:
        """Begin with none.

        Args:
            template: That the next prompt will be rendered by.
            context: Largest prompt plus reply, in tokens.
            frame: Places the rows of a prompt that shows something.
            wanted: Takes each history, in that thread.
        """
        self._template = template
        self._context = context
        self._frame = frame
        self._wanted = wanted
        self._lock = threading.Lock()
        self._waiting = WeakSet[_Shown | Frame]()  # each as long as anybody keeps it
        self._helper = Helper("flashnext-histories", MOST_WAITING)

    @property
    def n_waiting(self) -> int:
        """Histories that have not been rendered."""
        return self._helper.n_waiting

    def add(
        self,
        messages: Sequence[Mapping[str, Any]],
        media: Sequence[Media],
        tools: Sequence[Mapping[str, Any]] | None,
        options: TemplateOptions | None,
        said: Said,
    ) -> None:
        """Render a chat with its reply appended, soon.

        Args:
            messages: The chat.
            media: What it shows, in order.
            tools: Its tools.
            options: Of the template.
            said: The reply.
        """
        shown = _Shown(media)
        with self._lock:
            if shown.media and self._bytes(shown) > MOST_MEDIA_BYTES:
                return
            self._waiting.add(shown)
        self._helper.call(lambda: self._render([*messages, said.message()], tools, options, shown))

    def close(self) -> None:
        """Render no more."""
        self._helper.close()

    def _bytes(self, more: _Shown) -> int:
        """Count what all that waits keeps of pictures and videos, and one history more."""
        kept = {id(media): media.levels.nbytes for media in more.media}
        for one in self._waiting:
            media = one.media if isinstance(one, _Shown) else [media for _, media in one.shown]
            kept |= {id(each): each.levels.nbytes for each in media}
        return sum(kept.values())

    def _render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        options: TemplateOptions | None,
        shown: _Shown,
    ) -> None:
        try:
            ids = self._template.history(messages, tools, options)
            if not 1 < len(ids) < self._context:
                return
            tokens = np.asarray(ids, np.int32)
            frame = self._frame(tokens, shown.media)
        except FlashnextError:
            return  # what the model said has no place in a prompt
        if frame is not None:
            with self._lock:
                self._waiting.add(frame)
        spaced = [place for place in places(len(ids)) if place.kind == Kind.SPACED]
        self._wanted(WarmPass(tokens, (*spaced, Place(len(ids), Kind.END)), frame))
