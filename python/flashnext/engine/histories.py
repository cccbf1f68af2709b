"""From the end of a chat's reply to a warm pass: its history as template and tokenizer will render it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from flashnext.engine.helper import Helper
from flashnext.engine.marks import Kind, Place, places
from flashnext.engine.reply import Said
from flashnext.engine.warm import MOST_WAITING, WarmPass
from flashnext.errors import FlashnextError
from flashnext.text.template import ChatTemplate, TemplateOptions


class Histories:
    """Renders histories in a thread of its own, since a long one takes a while."""

    def __init__(self, template: ChatTemplate, context: int, wanted: Callable[[WarmPass], object]) -> None:
        """Begin with none.

        Args:
            template: That the next prompt will be rendered by.
            context: Largest prompt plus reply, in tokens.
            wanted: Takes each history, in that thread.
        """
        self._template = template
        self._context = context
        self._wanted = wanted
        self._helper = Helper("flashnext-histories", MOST_WAITING)

    @property
    def n_waiting(self) -> int:
        """Histories that have not been rendered."""
        return self._helper.n_waiting

    def add(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        options: TemplateOptions | None,
        said: Said,
    ) -> None:
        """Render a chat with its reply appended, soon."""
        self._helper.call(lambda: self._render([*messages, said.message()], tools, options))

    def close(self) -> None:
        """Render no more."""
        self._helper.close()

    def _render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        options: TemplateOptions | None,
    ) -> None:
        try:
            ids = self._template.history(messages, tools, options)
        except FlashnextError:
            return  # what the model said has no place in a prompt
        if 1 < len(ids) < self._context:
            tokens = np.asarray(ids, np.int32)
            spaced = [place for place in places(len(ids)) if place.kind == Kind.SPACED]
            self._wanted(WarmPass(tokens, (*spaced, Place(len(ids), Kind.END))))
