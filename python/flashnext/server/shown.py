"""Pictures and videos as requests bring them: what each route's parts become, and what errors call them."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from flashnext.server.chat_form import text_in
from flashnext.server.fields import Unknown, know
from flashnext.text.messages import InvalidField, cut

_MARKS = ("type", "cache_control", "prompt_cache_breakpoint")
_PLACE = re.compile(r"messages\[(\d+)\]\.content\[(\d+)\]")
# Parts of programs, which bring bytes or open files; no request does.
_OF_PROGRAMS = {"image": "image_url", "video": "video_url"}
_MOST_SHOWN = 60  # of an address that an error or a log shows


class Shown(dict[str, Any]):
    """A part of type `image_url`, made of one that another route has.

    Attributes:
        place: Where the client wrote it.
        url: Where the address, or the data, stands.
        detail: Where it says how closely to look.
    """

    def __init__(self, url: str, detail: Any, *, place: str, at: str) -> None:
        """Take the address.

        Args:
            url: Of the picture.
            detail: How closely to look at it; None where it does not say.
            place: Where the client wrote the part.
            at: Where in that the address stands.
        """
        super().__init__(type="image_url", image_url={"url": url, "detail": detail})
        self.place, self.url, self.detail = place, f"{place}.{at}", f"{place}.detail"

    def written(self, rest: str) -> str:
        """Find where the client wrote what stands at an end of the part's own place."""
        if rest.endswith(".detail"):
            return self.detail
        return self.url if rest else self.place


@contextmanager
def told_where_written(messages: Sequence[Mapping[str, Any]]) -> Iterator[None]:
    """Tell what is wrong with parts of a chat under the places that they have in the request.

    Raises:
        InvalidField: There was one in the block.
    """
    try:
        yield
    except InvalidField as error:
        found = _PLACE.match(error.field)
        content = messages[int(found[1])].get("content") if found else None
        part = content[int(found[2])] if found and isinstance(content, list) else None
        if found is None or not isinstance(part, Shown):
            raise
        raise type(error)(part.written(error.field[found.end() :]), error.problem) from None


def input_image(part: dict[str, Any], place: str, unknown: Unknown) -> Shown:
    """Read a picture of Responses.

    Raises:
        InvalidField: It has no address.
    """
    know(part, (*_MARKS, "image_url", "detail", "file_id", "id"), place, unknown)
    if part.get("file_id") is not None:
        raise InvalidField(f"{place}.file_id", "no files are kept here; give image_url")
    detail = part.get("detail")
    return Shown(
        text_in(part, "image_url", place),
        "high" if detail == "original" else detail,
        place=place,
        at="image_url",
    )


def image_block(block: dict[str, Any], place: str, unknown: Unknown) -> Shown:
    """Read a picture of Anthropic's route; what type its data claims to have does not count.

    Raises:
        InvalidField: It has no source that is read here.
    """
    know(block, (*_MARKS, "source"), place, unknown)
    source, field = block.get("source"), f"{place}.source"
    if not isinstance(source, dict):
        raise InvalidField(field, f"expected an object, found {cut(repr(source), 80)}")
    kind = source.get("type")
    if kind == "base64":
        know(source, ("type", "media_type", "data"), field, unknown)
        return Shown(f"data:;base64,{text_in(source, 'data', field)}", None, place=place, at="source.data")
    if kind == "url":
        know(source, ("type", "url"), field, unknown)
        return Shown(text_in(source, "url", field), None, place=place, at="source.url")
    if kind == "file":
        raise InvalidField(f"{field}.type", "no files are kept here; give a source of type 'base64'")
    raise InvalidField(f"{field}.type", f"expected one of base64, url, found {cut(repr(kind), 80)}")


def know_shown(messages: Sequence[Mapping[str, Any]], unknown: Unknown) -> None:
    """Look through the parts of a chat that show something, or would for a program.

    Raises:
        InvalidField: One is of a type that only programs can give, or has an unknown field where those are
            refused.
    """
    for i, message in enumerate(messages):
        content = message.get("content")
        for k, part in enumerate(content if isinstance(content, list) else ()):
            kind = part.get("type") if isinstance(part, Mapping) else None
            if not isinstance(kind, str):
                continue
            place = f"messages[{i}].content[{k}]"
            if kind in _OF_PROGRAMS:
                name = _OF_PROGRAMS[kind]
                raise InvalidField(
                    f"{place}.type",
                    f"{kind!r} is a part of programs; give "
                    f'{{"type": "{name}", "{name}": {{"url": "data:..."}}}}',
                )
            if kind in _OF_PROGRAMS.values():
                know(part, (*_MARKS, kind, "detail", "id", "uuid"), place, unknown)
                know(part.get(kind), ("url", "detail"), f"{place}.{kind}", unknown)


def without_data(value: Any) -> Any:
    """Copy a request for the log, without the bytes of pictures and videos."""
    if isinstance(value, Mapping):
        out = {key: without_data(one) for key, one in value.items()}
        if value.get("type") == "base64" and isinstance(value.get("data"), str):
            out["data"] = _shortened(value["data"])
        return out
    if isinstance(value, list):
        return [without_data(one) for one in value]
    return _shortened(value) if isinstance(value, str) and value[:5].lower() == "data:" else value


def with_files(value: Any, fetched: Mapping[str, bytes]) -> Any:
    """Copy a request with what addresses held in their place."""
    if isinstance(value, list):
        return [with_files(one, fetched) for one in value]
    if not isinstance(value, Mapping):
        return value
    kind = value.get("type")
    out = {
        # What a call says is the model's own, whatever it looks like.
        key: one if key == "arguments" or (kind, key) == ("tool_use", "input") else with_files(one, fetched)
        for key, one in value.items()
    }
    if kind == "input_image":
        _put_file(out, "image_url", fetched)
    elif kind == "image" and isinstance(out.get("source"), dict):
        _put_file(out["source"], "url", fetched)
    elif kind in _OF_PROGRAMS.values() and isinstance(out.get(kind), dict):
        _put_file(out[kind], "url", fetched)
    return out


def _put_file(part: dict[str, Any], key: str, fetched: Mapping[str, bytes]) -> None:
    url = part.get(key)
    if isinstance(url, str) and url in fetched:
        part[key] = f"data:;base64,{b64encode(fetched[url]).decode()}"


def _shortened(text: str) -> str:
    """Tell of data what it claims to be, and how long it is."""
    head, comma, _ = text[:_MOST_SHOWN].partition(",")
    return f"{head}{comma}... ({len(text):,} characters)" if comma else f"... ({len(text):,} characters)"
