"""Finished requests kept in a file, and answered again, alone and without drafts, to compare."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from flashnext.engine.engine import Engine
from flashnext.engine.sampling import Sampling
from flashnext.errors import InvalidArgument
from flashnext.server.chat_request import Asked, ChatRequest
from flashnext.server.completion_request import CompletionRequest
from flashnext.server.fields import Unknown
from flashnext.server.messages_request import MessagesRequest
from flashnext.server.responses_request import ResponsesRequest
from flashnext.server.settings import Defaults
from flashnext.text.jsontext import dumps, loads


@dataclass(frozen=True)
class Record:
    """A finished request and what came of it.

    Attributes:
        id: That the log and the header `x-request-id` gave it.
        route: Where it was sent.
        checkpoint: Folder that it was answered with.
        dtype: Of activations and caches.
        context: Of the server, in tokens.
        defaults: The server's, where the request says nothing.
        media_limits: How much chats might show there.
        body: What it said.
        seeds: Of its replies.
        token_shas: Fingerprints of its replies.
    """

    id: str
    route: str
    checkpoint: str
    dtype: str
    context: int
    defaults: dict[str, Any]
    body: dict[str, Any]
    seeds: list[int]
    token_shas: list[str]
    media_limits: dict[str, Any] = field(default_factory=dict)

    def append_to(self, path: Path) -> None:
        """Write it as the file's next line.

        Raises:
            OSError: The file cannot be written.
        """
        with path.open("a", encoding="utf-8", errors="surrogateescape") as file:
            file.write(dumps(asdict(self)) + "\n")

    @classmethod
    def find(cls, path: Path, request_id: str) -> Record:
        """Read a request from a file.

        Raises:
            InvalidArgument: The file cannot be read, or does not have it.
        """
        try:
            with path.open(encoding="utf-8", errors="surrogateescape") as file:
                for line in file:
                    if request_id in line:
                        record = cls(**loads(line))
                        if record.id == request_id:
                            return record
        except OSError as error:
            raise InvalidArgument(f"{path}: cannot be read: {error.strerror}") from None
        except (TypeError, UnicodeDecodeError, InvalidArgument) as error:
            raise InvalidArgument(f"{path}: not a file of recorded requests: {error}") from None
        raise InvalidArgument(f"{path}: there is no request {request_id!r}; see the server's log for ids")

    def replay(self, engine: Engine) -> Iterator[str]:
        """Answer it again, reply by reply; gives their fingerprints."""
        unknown, defaults = Unknown(), Defaults(**self.defaults)
        if self.route != "/v1/completions":
            turn, sampling = _chat(self.route, self.body, unknown, defaults, engine.context)
            for seed in self.seeds:
                request = engine.generate(
                    turn.messages, sampling=_alone(sampling, seed), tools=turn.tools, options=turn.options
                )
                yield request.result().token_sha
        else:
            asked = CompletionRequest.read(self.body, unknown)
            sampling = asked.sampling(defaults, engine.context)
            for i, seed in enumerate(self.seeds):
                prompt = asked.prompts()[i // asked.n]
                yield engine.generate(prompt, sampling=_alone(sampling, seed)).result().token_sha


def _chat(
    route: str, body: Mapping[str, Any], unknown: Unknown, defaults: Defaults, context: int
) -> tuple[Asked, Sampling]:
    """Read a body of one of the routes of chats."""
    if route == "/v1/messages":
        message = MessagesRequest.read(body, unknown)
        return message.chat(), message.sampling(defaults, context)
    kind = ResponsesRequest if route == "/v1/responses" else ChatRequest
    asked = kind.read(body, unknown)
    return asked.chat(defaults), asked.sampling(defaults, context)


def _alone(sampling: Sampling, seed: int) -> Sampling:
    return replace(sampling, seed=seed, draft=False, cache=False)
