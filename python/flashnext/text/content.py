"""What messages say: text, or text with pictures and videos between."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal, Protocol

Content = str | list[dict[str, Any]]
"""Text, or parts in their order: `{"type": "text", "text": ...}`, `{"type": "image", "image": Medium}`, and
so for "video"; no two texts are next to each other."""

KINDS = ("image", "video")

_TOKEN_CHARS = 4  # as many as a token of text has, about


class Medium(Protocol):
    """A prepared picture or video, as far as a prompt is concerned."""

    @property
    def kind(self) -> Literal["image", "video"]:
        """Which of the two."""

    @property
    def key(self) -> bytes:
        """Equal where what is seen is equal."""

    @property
    def n_tokens(self) -> int:
        """Rows that it takes in a prompt."""

    def spans(self) -> Iterable[tuple[str, int]]:
        """Say what stands for it: texts, each with how many pads stand behind it between markers."""


def texts(content: Content) -> list[str]:
    """Give the texts of a content."""
    if isinstance(content, str):
        return [content]
    return [part["text"] for part in content if part["type"] == "text"]


def opening(content: Content) -> str:
    """Give the text that a content begins with; empty where that is a picture or a video."""
    if isinstance(content, str):
        return content
    return next((part["text"] for part in content[:1] if part["type"] == "text"), "")


def media(content: Content) -> list[Medium]:
    """Give the pictures and videos of a content."""
    if isinstance(content, str):
        return []
    return [part[part["type"]] for part in content if part["type"] in KINDS]


def chat_media(messages: Iterable[Mapping[str, Any]]) -> list[Medium]:
    """Give the pictures and videos of a chat in canonical form, in their order."""
    return [medium for message in messages for medium in media(message["content"])]


def size(content: Content) -> int:
    """Count characters, and for pictures and videos as many as text of so many tokens has."""
    shown = sum(medium.n_tokens for medium in media(content))
    return sum(map(len, texts(content))) + _TOKEN_CHARS * shown
