"""What all routes share: the engine, once it is loaded, the settings, the queue and the ids."""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from starlette.requests import Request

from flashnext.engine.engine import Engine
from flashnext.engine.events import Event
from flashnext.engine.reading import ReadPrompt
from flashnext.engine.request import AsyncRequest
from flashnext.engine.sampling import Sampling, choice_seed
from flashnext.server.addresses import Addresses
from flashnext.server.answering import Running
from flashnext.server.errors import ModelLoading, ModelNotFound, logged
from flashnext.server.fields import Unknown
from flashnext.server.ids import RandomIds
from flashnext.server.media_room import MediaRoom
from flashnext.server.metrics import Metrics
from flashnext.server.queue import Queue
from flashnext.server.record import Record
from flashnext.server.responses_store import ResponseStore
from flashnext.server.settings import Settings
from flashnext.server.shown import with_files, without_data
from flashnext.server.structured import schemas_told_as
from flashnext.server.usage import extras, told_reason
from flashnext.text.messages import cut
from flashnext.version import VERSION

_log = logging.getLogger("flashnext.server")

STAGES = {"tokenizer and chat template": 5, "weights": 20}
"""Percent of the time of loading that has passed when a stage begins."""


class Service:
    """The state of a server. Used by one event loop, save where said otherwise.

    Attributes:
        settings: How it behaves.
        unknown: What is done about unknown fields.
        stage: What is being loaded, while the engine is not there.
        n_connections: Counts the open connections.
        loaded: The engine, None while it is being loaded.
        queue: The open replies.
        media_room: Memory for what they show.
        addresses: Fetches what requests name by address; None where nothing is fetched.
        responses: Those that are kept for others to go on from.
        fingerprint: What stands for the model, its numbers and this version.
        metrics: What has been counted.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        now: Callable[[], float] = time.time,
        clock_s: Callable[[], float] = time.monotonic,
        new_id: Callable[[], str] | None = None,
    ) -> None:
        """Make a server that is still loading.

        Args:
            settings: How it behaves.
            now: The time of day, in Unix seconds.
            clock_s: A clock that never goes back.
            new_id: Makes the random part of ids; by default `RandomIds`.
        """
        self.settings = settings
        self.unknown = Unknown(settings.strict_fields)
        self.stage = "starting"
        self.n_connections: Callable[[], int] = lambda: 0
        self.created = int(now())
        self.now = now
        self.clock_s = clock_s
        self.new_id = new_id or RandomIds()
        self.loaded: Engine | None = None
        self.queue = Queue(1, settings.max_queue, clock_s)
        self.media_room = MediaRoom(settings.media_room_bytes)
        self.addresses = Addresses() if settings.media_urls else None
        self.responses = ResponseStore(settings.max_responses, settings.max_responses_bytes)
        self.fingerprint = ""
        self.metrics = Metrics()

    def ready(self, engine: Engine) -> None:
        """Take the engine; it stays the caller's to close."""
        self.queue = Queue(engine.parallel, self.settings.max_queue, self.clock_s)
        self.fingerprint = _fingerprint(engine)
        self.loaded = engine

    @property
    def engine(self) -> Engine:
        """The engine.

        Raises:
            ModelLoading: It is not there yet.
        """
        if self.loaded is None:
            raise ModelLoading(f"the model is being loaded ({self.stage}); try again later", 5)
        return self.loaded

    @property
    def percent(self) -> int:
        """How far loading has come, by its stages."""
        return STAGES.get(self.stage, 0)

    @property
    def stalled_s(self) -> float:
        """For how long the engine's step has lasted, while it has anything to do; else 0."""
        return self.loaded.step_s if self.loaded is not None else 0.0

    @property
    def healthy(self) -> bool:
        """Whether a request would be answered now."""
        loaded = self.loaded
        return loaded is not None and loaded.failure is None and self.stalled_s <= self.settings.stall_s

    @property
    def name(self) -> str:
        """The name of the model that replies carry."""
        return self.settings.names[0]

    def require_model(self, name: str) -> None:
        """Refuse a model that is not served.

        Raises:
            ModelNotFound: It is another.
        """
        if name not in (*self.settings.names, self.settings.path):
            served = cut(", ".join(map(repr, self.settings.names)), 500)
            raise ModelNotFound(
                "model",
                f"{cut(repr(name), 100)} is not served here; this server's model has the names {served}; "
                "start it with --served-model-name NAME to give it another",
            )

    def begin(self, http: Request, body: Mapping[str, Any], n: int, field: str = "n") -> Running:
        """Take places for n replies of a request.

        Args:
            http: The request.
            body: What it says.
            n: How many replies it asks for.
            field: By which it asks for so many.

        Raises:
            QueueFull: There are not that many now.
            InvalidField: There are never that many.
        """
        detail: dict[str, Any] = http.state.detail
        if self.settings.log_prompts:
            detail["body"] = without_data(body)
        kept = body if self.settings.record is not None else None

        def told(running: Running) -> None:
            detail.update(_told(running))
            self.metrics.ended(running)
            if kept is not None:
                asked = with_files(kept, running.fetched) if running.fetched else kept
                self._record(detail["id"], http.url.path, asked, running.requests)

        running = Running(http.receive, self.settings.timeout_s, self.settings.keepalive_s, told)
        running.fetched = {} if kept is not None else None
        running.hold(self.queue.place(n, field))
        return running

    def _record(
        self, request_id: str, route: str, body: Mapping[str, Any], requests: Sequence[AsyncRequest]
    ) -> None:
        """Keep a request that can be replayed: one whose replies have all come to their end."""
        last = [request.last for request in requests]
        shas = [event.token_sha for event in last if event and event.finish_reason in ("stop", "length")]
        if not requests or len(shas) < len(requests) or self.settings.record is None:
            return
        if body.get("max_tokens") == 0:  # of such a response nothing is drawn that could be compared
            return
        record = Record(
            id=request_id,
            route=route,
            checkpoint=str(self.engine.loaded.checkpoint.path),
            dtype=self.engine.loaded.dtype,
            context=self.engine.context,
            defaults=asdict(self.settings.defaults),
            media_limits=asdict(self.settings.media_limits),
            body=dict(body),
            seeds=[request.seed for request in requests],
            token_shas=[sha for sha in shas if sha],
        )
        try:
            record.append_to(self.settings.record)
        except OSError as error:
            _log.warning("%s: the request could not be recorded: %s", self.settings.record, error.strerror)
        except ValueError as error:  # text that no file in UTF-8 can have
            _log.warning("%s: the request could not be recorded: %s", self.settings.record, error)

    async def choices(
        self, prompt: ReadPrompt, sampling: Sampling, n: int, *, parameters: str = ""
    ) -> list[AsyncRequest]:
        """Begin n replies to one prompt, each as a request with its choice's seed would begin it.

        Args:
            prompt: What they answer.
            sampling: How they are drawn; its seed is that of the first.
            n: How many.
            parameters: Where a tool of the route has the schema of its parameters.

        Raises:
            InvalidField: What they have to match cannot be enforced.
        """
        requests: list[AsyncRequest] = []
        try:
            with schemas_told_as(sampling.grammar, parameters):
                for i in range(n):
                    drawn = replace(sampling, seed=choice_seed(requests[0].seed, i)) if i else sampling
                    requests.append(await self.engine.generate_async(prompt, sampling=drawn))
        except BaseException:
            for request in requests:
                request.cancel()
            raise
        return requests


def _told(running: Running) -> dict[str, Any]:
    """Say for the log what became of replies: of each, where there are several."""
    told = [_told_of(request, running.left) for request in running.requests]
    keys = dict.fromkeys(key for one in told for key in one)
    out = told[0] if len(told) == 1 else {key: [one.get(key) for one in told] for key in keys}
    return {**out, **(logged(running.error) if running.error else {})}


def _told_of(request: AsyncRequest, left: bool) -> dict[str, Any]:
    last = request.last or Event()
    finish = told_reason(last.finish_reason or "failed", request.n_calls)
    return {
        "prompt_tokens": len(request.prompt_ids),
        **({"cached_tokens": last.usage.cached_tokens} if last.usage else {}),
        "reply_tokens": request.n_read,
        "finish": "client left" if left else finish,
        **extras(last, request.seed),
    }


def _fingerprint(engine: Engine) -> str:
    """Hash what decides the bits of replies: version, device, dtype, checkpoint files by name and size."""
    loaded = engine.loaded
    digest = hashlib.sha256(f"{VERSION} {loaded.device.name} {loaded.dtype} {engine.context}".encode())
    for path in loaded.checkpoint.files:
        digest.update(f"{path.name} {path.stat().st_size}".encode("utf-8", "surrogateescape"))
    digest.update(repr(loaded.checkpoint.config).encode())
    return f"fp_{digest.hexdigest()[:16]}"
