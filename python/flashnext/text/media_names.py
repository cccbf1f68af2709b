"""What the template writes for pictures and videos, made into what the model reads.

A template writes `<|vision_start|><|image_pad|><|vision_end|>` for each picture, whatever it shows. Here this
gives way to what `Medium.spans` says, with a short name in place of the pads: so texts stay short, and two
pictures differ in them. A name is two lone surrogates, which no text of a request has (`clean_text`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from flashnext.text.content import Medium
from flashnext.text.messages import InvalidField
from flashnext.text.written import Written

START, END = "<|vision_start|>", "<|vision_end|>"
_PAD = re.compile(rf"({re.escape(START)})?<\|(image|video)_pad\|>({re.escape(END)})?")
_NAME = re.compile("[\ud800-\udbff]{2}")
_A = {"image": "an image", "video": "a video"}
_FIRST, _MANY = 0xD800, 0x400  # high surrogates, of which a pair never makes a character


class MediaNames:
    """The names of one chat's pictures and videos, in however many ways it is rendered.

    Attributes:
        ids: What each name stands for.
    """

    def __init__(self, control_ids: Mapping[str, int]) -> None:
        """Begin with none.

        Args:
            control_ids: Of the tokenizer.
        """
        self.ids: dict[str, list[int]] = {}
        self._control_ids = control_ids
        self._names: dict[tuple[bytes, str, int], str] = {}

    def fill(self, text: Written, media: Sequence[Medium]) -> Written:
        """Put media where the template has written their pads.

        Args:
            text: A rendered chat.
            media: Of that chat, in its order.

        Raises:
            InvalidField: The template has not written each of them once, in this order, between markers.
        """
        plain = text.plain()
        pieces: list[str] = []
        at = n = 0
        for start, end in text.spans:
            for match in _PAD.finditer(plain, start, end):
                if n == len(media) or match[2] != media[n].kind or not (match[1] and match[3]):
                    raise _refused(media, n, match)
                pieces.append(text[at : match.start()])
                for said, n_pads in media[n].spans():
                    pieces += [said, Written.all_of(START), self._name(media[n], n_pads), Written.all_of(END)]
                at, n = match.end(), n + 1
        if n < len(media):
            raise _refused(media, n, None)
        return Written.concat([*pieces, text[at:]])

    def told(self, plain: str) -> str:
        """Write a filled text for people, with one pad for those next to each other."""
        return _NAME.sub(lambda name: self._pads[name[0]], plain) if self.ids else plain

    @property
    def _pads(self) -> dict[str, str]:
        return {name: f"<|{kind}_pad|>" for (_, kind, _), name in self._names.items()}

    def _name(self, medium: Medium, n_pads: int) -> str:
        of = (medium.key, medium.kind, n_pads)
        if of not in self._names:
            high, low = divmod(len(self._names), _MANY)
            name = self._names[of] = chr(_FIRST + high) + chr(_FIRST + low)
            pad = self._control_ids.get(f"<|{medium.kind}_pad|>")
            if pad is None or not {START, END} <= self._control_ids.keys():
                raise InvalidField(
                    "messages", f"this checkpoint's tokenizer has no token for the rows of {_A[medium.kind]}"
                )
            self.ids[name] = [pad] * n_pads
        return self._names[of]


def _refused(media: Sequence[Medium], n: int, match: re.Match[str] | None) -> InvalidField:
    """Say what the template has done in place of writing medium n."""
    if match is not None and not (match[1] and match[3]):
        problem = f"writes the pad of {_A[match[2]]} without {START} before and {END} behind it"
    elif match is None:
        problem = f"leaves out the {_ordinal(media, n)}; it writes {n} of {len(media)} pictures and videos"
    elif n == len(media):
        problem = f"writes more than the {n} pictures and videos that the chat has"
    else:
        problem = f"writes {_A[match[2]]} where the chat has its {_ordinal(media, n)}"
    return InvalidField("messages", f"this checkpoint's chat template {problem}")


def _ordinal(media: Sequence[Medium], n: int) -> str:
    kind = media[n].kind
    return f"{kind} number {sum(medium.kind == kind for medium in media[: n + 1])}"
