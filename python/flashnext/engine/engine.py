"""The engine: a loaded checkpoint that answers prompts, for programs and for the server."""

from __future__ import annotations

import asyncio
import itertools
import os
import queue
import secrets
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

from flashnext import _core
from flashnext.checkpoint import Checkpoint, open_checkpoint
from flashnext.checkpoint.config import PAGE_TOKENS
from flashnext.checkpoint.folder import find_file, open_folder
from flashnext.checkpoint.identity import identity
from flashnext.engine.arguments import is_number, size_bytes, spill_limit_bytes
from flashnext.engine.caching import Caching
from flashnext.engine.chat_media import ChatMedia
from flashnext.engine.chat_media import Eyes as Seeing
from flashnext.engine.core import CoreOptions
from flashnext.engine.defaults import DRAFTS, GAP_MS, MAX_WINDOW, ROUND_ROWS, SAVE_S
from flashnext.engine.errors import ContextExceeded, EngineClosed, MemoryShort
from flashnext.engine.events import Counts, MemoryUse, VisionCounts
from flashnext.engine.eyes import Eyes
from flashnext.engine.grammars import Grammars
from flashnext.engine.guard import Guard, own_footprint, private_bytes
from flashnext.engine.histories import Histories
from flashnext.engine.inbox import Inbox, Item, Mailbox
from flashnext.engine.job import Deliver, Job
from flashnext.engine.load import Loaded, load_model, open_device
from flashnext.engine.loaded_core import LoadedCore
from flashnext.engine.looks import Looks
from flashnext.engine.machine import ram_bytes
from flashnext.engine.many import AHEAD, BatchItem, Outcome, answered, is_chat
from flashnext.engine.plan import Machine, MemoryPlan, PlanSettings, make_plan, size
from flashnext.engine.reading import PromptLike, Reader, ReadPrompt
from flashnext.engine.reply import ReplyText, Said, closing_ids
from flashnext.engine.request import AsyncRequest, Request
from flashnext.engine.sampling import Defaults, Sampling
from flashnext.engine.scheduler import Scheduler
from flashnext.engine.sizes import VisionRoom, features_bytes, vision_room_of, weight_sizes
from flashnext.engine.spill import Spill
from flashnext.engine.spill_files import SpillError
from flashnext.engine.thread import EngineThread
from flashnext.engine.wording import ARGUMENTS, Names
from flashnext.errors import CheckpointError, InvalidArgument
from flashnext.grammar import Compiled
from flashnext.media import Limits
from flashnext.text.messages import InvalidField
from flashnext.text.template import ChatTemplate, TemplateOptions
from flashnext.text.tokenizer import Tokenizer

_EXIT_TIMEOUT_S = SAVE_S + 5.0
SEED_BITS = 53  # of a seed that is drawn here: what every JSON reader keeps of a number
_TEXT_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")


BUNDLED = Path(__file__).parents[1] / "data" / "tiny-6bit"
"""The small trained checkpoint that travels with the package."""


class Engine:
    """A checkpoint on a device, and the thread that answers with it.

    Its methods may be called from any thread, and the async ones from any event loop. Requests are
    admitted by priority and arrival, and answered together. It belongs to the process that made it: after a
    fork the child has to make its own.

        with Engine(path) as engine:
            for event in engine.generate("Hello", sampling=Sampling(max_tokens=20)):
                print(event.text, end="")

    Attributes:
        tokenizer: Of the checkpoint.
        template: Its chat template.
        context: Largest prompt plus reply, in tokens.
        parallel: Most requests that are answered at once.
        plan: What memory it takes.
        warnings: Sentences about what was asked for and is not so.
    """

    def __init__(
        self,
        path: str | Path = BUNDLED,
        *,
        device: str | _core.Device = "auto",
        dtype: str = "bfloat16",
        context: int | None = None,
        drafts: int = DRAFTS,
        parallel: int | None = None,
        gap_ms: float = GAP_MS,
        round_rows: int = ROUND_ROWS,
        ngram_table: str = "auto",
        lone: bool = True,
        serial_drafts: bool = False,
        prices: bool = True,
        load_limit_gib: float | None = None,
        prefix_cache_gib: float | None = None,
        spill_dir: str | Path | None = None,
        spill_limit_gib: float | None = None,
        vision: bool = True,
        media_limits: Limits | None = None,
        planned: Callable[[MemoryPlan], None] = lambda plan: None,
        progress: Callable[[str], None] = lambda stage: None,
        random_bits: Callable[[int], int] = secrets.randbits,
        names: Names = ARGUMENTS,
    ) -> None:
        """Load a checkpoint and start the thread.

        Args:
            path: Checkpoint folder.
            device: "auto", the name of a device, or one that is open, as `flashnext.engine.load.open_device`
                opens the CPU's with so many workers.
            dtype: "bfloat16" or "float32", of activations and caches.
            context: Largest prompt plus reply in tokens; default the model's window, or what of it fits the
                load limit.
            drafts: Most drafts of a round, 0 to 15, by the checkpoint's draft head, which is loaded only
                then. They change the speed of replies and nothing else.
            parallel: Most requests that are answered at once, 1 to 64, by default 16 or as many as there is
                room for; whom a request is answered beside changes no bit of it. They share the pages of one
                whole context.
            gap_ms: How long a reply may stand still while prompts of others are read, in milliseconds; four
                rounds where that is longer.
            round_rows: Most rows of a round, 1 to 64: the pending tokens of all its sequences, and drafts.
            ngram_table: "resident", the n-gram table counts as in memory, or "streamed", its rows are read
                from its file as they are needed; "auto": streamed only where it does not fit otherwise.
            lone: Let a single sequence run by rounds that need no host.
            serial_drafts: Draft only when the host has seen what a round kept; slower, to look for faults.
            prices: Weigh what drafts cost; without, each sequence gets the most it may have.
            load_limit_gib: Most memory that all of it takes, in GiB, above 0; default 70 % of the machine's.
            prefix_cache_gib: For prompts that were read, in GiB, so that others go on from them; 0 for no
                cache, default what the plan finds.
            spill_dir: Folder for what the cache has no room for; default none. It keeps what prompts say.
            spill_limit_gib: Most that the files there take, in GiB, by default 32; only with a folder.
            vision: Load the vision tower, where the checkpoint has one, for chats that show pictures.
            media_limits: How much a chat may show, as `flashnext.media.Limits`; by default what these are.
            planned: Told the memory plan, before anything of it is allocated.
            progress: Told what is being loaded, stage by stage.
            random_bits: Where the seeds of requests without one come from.
            names: How refusals and warnings call these arguments; the server's by their flags.

        Raises:
            CheckpointError: The checkpoint is refused.
            InvalidArgument: An argument is of another type or out of its range; the text names it.
            OutOfMemory: It does not fit the load limit, and the text says what would; or the system does not
                give the memory.
        """
        if isinstance(drafts, bool) or not isinstance(drafts, int) or not 0 <= drafts < MAX_WINDOW:
            raise InvalidArgument(f"{names.name('drafts')} is {drafts!r}, expected 0 to {MAX_WINDOW - 1}")
        flags = {"lone": lone, "serial_drafts": serial_drafts, "prices": prices, "vision": vision}
        for name, flag in flags.items():
            if not isinstance(flag, bool):
                raise InvalidArgument(f"{names.name(name)} is {flag!r}, expected True or False")
        if media_limits is not None and not isinstance(media_limits, Limits):
            raise InvalidArgument(f"media_limits is {media_limits!r}, expected flashnext.media.Limits")
        settings = PlanSettings(
            context=context,
            parallel=parallel,
            dtype=dtype,
            round_rows=round_rows,
            ngram_table=ngram_table,
            load_limit_bytes=size_bytes(names.name("load_limit_gib"), load_limit_gib),
            spill=spill_dir is not None,
            prefix_cache_bytes=size_bytes(names.name("prefix_cache_gib"), prefix_cache_gib, zero=True),
            names=names,
        )
        limit_bytes = spill_limit_bytes(names, spill_dir, spill_limit_gib)
        if not (is_number(gap_ms) and gap_ms >= 0):
            raise InvalidArgument(f"{names.name('gap_ms')} is {gap_ms!r}, expected 0 or more milliseconds")
        program_bytes = private_bytes() or 0
        progress("tokenizer and chat template")
        folder = open_folder(path)
        for name in _TEXT_FILES:
            find_file(folder, name)  # refuses a link that leads out of the folder
        self.tokenizer = Tokenizer.from_folder(path)
        self.template = ChatTemplate.from_folder(path, self.tokenizer)
        self._defaults = Defaults.from_folder(path)
        limits = media_limits or Limits()
        self.plan, checkpoint, opened, room = _plan(
            path, device, settings, draft_head=drafts > 0, limits=limits if vision else None
        )
        planned(self.plan)
        self._media = ChatMedia(
            Path(path),
            limits,
            (checkpoint.config.image_token, checkpoint.config.video_token),
            why_no_eyes(checkpoint, vision, names),
        )
        progress("weights")
        self._loaded = load_model(
            checkpoint,
            device=opened,
            dtype=dtype,
            context=self.plan.context,
            cache_pages=self.plan.prefix_cache_bytes // self.plan.page_bytes,
            draft_head=drafts > 0,
            streamed_table=self.plan.ngram_table == "streamed",
            max_patches=room.max_patches if room is not None else 0,
        )
        vocab_size = self._loaded.model.vocab_size
        if self.tokenizer.n_tokens > vocab_size:
            raise CheckpointError(
                f"{path}: tokenizer.json has ids up to {self.tokenizer.n_tokens - 1}, "
                f"the model's vocabulary has {vocab_size}"
            )
        core = LoadedCore(
            self._loaded,
            self.tokenizer.n_tokens,
            CoreOptions(lone=lone, serial_drafts=serial_drafts, prices=prices, round_rows=round_rows),
        )
        self.context = self._loaded.context
        self._random_bits = random_bits
        self._n_drafts = drafts
        self._names = names
        self._stop_ids = frozenset(self._loaded.checkpoint.stop_tokens)
        self._grammars = Grammars(self.tokenizer, self._loaded.checkpoint.stop_tokens)
        self._numbers = itertools.count(1)
        self._process = os.getpid()
        self._loops = threading.local()  # each thread's mailbox, for the event loop that it runs
        self.parallel = self.plan.parallel
        self.warnings: tuple[str, ...] = ()
        self._caches = self.plan.prefix_cache_bytes > 0
        spill = self._open_spill(checkpoint, core, spill_dir, limit_bytes)
        self._guard = _guard(self.plan, core, lambda: scheduler.n_running, program_bytes)
        caching = Caching(core, self.plan.prefix_cache_bytes, time.perf_counter, guard=self._guard)
        self._eyes, looks = self._see(room)
        scheduler = Scheduler(core, self.parallel, gap_ms, caching=caching, looks=looks)
        thread = self._thread = EngineThread(scheduler)
        looks.told = thread.nudge
        self._histories = Histories(
            self.template,
            self.context,
            self._media.frame,
            lambda warm: thread.call(lambda scheduler: scheduler.add_warm(warm)),
        )
        self._reader = Reader(
            self.tokenizer, self.template, self._media, self._histories if self._caches else None
        )
        if spill is not None:
            thread.call(lambda scheduler: caching.attach(spill, thread.nudge))
        # Also at exit: the thread must not be inside the core while the interpreter is taken down.
        self._closing = (self._thread, self._histories, self._grammars, self._media, self._process)
        self._finalizer = weakref.finalize(self, _close, *self._closing, _EXIT_TIMEOUT_S)

    def _see(self, room: VisionRoom | None) -> tuple[Eyes | None, Looks]:
        """Open the eyes, if there is a tower, and make the thread that has things looked at."""
        tower, most, eyes = self._loaded.tower, self.context, None
        if tower is not None and room is not None:
            most = min(room.media_tokens, self.context)
            config = self._loaded.checkpoint.config
            eyes = self._media.eyes = Eyes(tower, features_bytes(config, most))
        return eyes, Looks(eyes, most)

    def _open_spill(
        self, checkpoint: Checkpoint, core: LoadedCore, folder: str | Path | None, limit_bytes: int
    ) -> Spill | None:
        """Take the spill directory, if there is to be one; where it cannot be used, a warning says so."""
        if folder is None:
            return None
        if not self._caches:
            self.warnings += (f"{folder}: there is no prefix cache, so nothing is written there",)
            return None
        name = f"{identity(checkpoint)} {core.identity()}"
        try:
            return Spill(Path(folder), core, name, page=PAGE_TOKENS, limit_bytes=limit_bytes)
        except SpillError as error:
            self.warnings += (f"the prefix cache goes without its spill directory: {error}",)
            return None

    @property
    def loaded(self) -> Loaded:
        """The loaded model: its checkpoint, device, sizes. For looking only; its thread owns it."""
        return self._loaded

    @property
    def eyes(self) -> Seeing | None:
        """What looks at the pictures and videos of chats; None where such chats are refused."""
        return self._media.eyes

    @eyes.setter
    def eyes(self, eyes: Seeing | None) -> None:
        self._media.eyes = eyes

    @property
    def failure(self) -> Exception | None:
        """Why the engine's thread died; None while it has not."""
        return self._thread.failure

    @property
    def last_step_s(self) -> float:
        """When the thread last began a step, or had to, by time.monotonic; 0 before the first."""
        return self._thread.last_step_s

    @property
    def step_s(self) -> float:
        """For how long the thread has been in the step that it is in; 0 while there is nothing to do."""
        counts = self._thread.counts
        return time.monotonic() - self.last_step_s if counts.waiting + counts.running else 0.0

    @property
    def counts(self) -> Counts:
        """What the engine is doing, and has done since it was made."""
        n_waiting = self._histories.n_waiting
        counts = self._thread.counts
        return replace(
            counts,
            cache=replace(counts.cache, warming=counts.cache.warming + n_waiting),
            vision=self._eyes.counts if self._eyes is not None else VisionCounts(),
        )

    @property
    def memory(self) -> MemoryUse:
        """What the memory guard sees: what the process takes, and what follows from that."""
        guard = self._guard
        return MemoryUse(guard.used_bytes, self.plan.limit_bytes, guard.shrink_bytes, guard.refuse_bytes)

    def generate(
        self,
        prompt: PromptLike,
        *,
        sampling: Sampling | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        options: TemplateOptions | None = None,
    ) -> Request:
        """Answer a prompt, event by event. The request begins at once and ends where its iterator is dropped.

        Args:
            prompt: Plain text, token ids, the messages of a chat, token ids with media, or what `read_async`
                made of one of them. What messages show is decoded in threads, and waited for here.
                Text and messages never give control tokens but those of the chat template. Only a chat's
                reply is taken apart into thoughts, answer and calls.
            sampling: How to draw; by default as the checkpoint recommends.
            tools: For a chat that has not been read yet, tools in OpenAI's form.
            options: For a chat that has not been read yet, options of the template.

        Returns:
            An iterator of events, the handle that `submit` returns.

        Raises:
            InvalidArgument: The prompt cannot be read, is too long, or a setting is out of its range.
            EngineClosed: The engine is closed or was made before a fork.
            EngineFailed: The engine's thread died.
            MemoryShort: The process takes nearly all the memory that it may.
        """
        return self.submit(prompt, sampling=sampling, tools=tools, options=options)

    def submit(
        self,
        prompt: PromptLike,
        *,
        sampling: Sampling | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        options: TemplateOptions | None = None,
    ) -> Request:
        """Like `generate`, for those who want to cancel it or to wait for its whole result."""
        self._require_process()
        items: queue.SimpleQueue[Item] = queue.SimpleQueue()
        read = self._reader.read(prompt, tools, options)
        sampling = sampling or Sampling()
        compiled = self._grammars.compile(sampling.grammar) if sampling.grammar else None
        job, seed = self._job(read, sampling, items.put, compiled)
        cancel = partial(self._cancel, job)
        request = Request(job.id, seed, read.token_ids, cancel, self._require_process, items)
        self._thread.submit(job)
        return request

    def batch(
        self,
        items: Iterable[PromptLike | BatchItem],
        *,
        sampling: Sampling | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        options: TemplateOptions | None = None,
        ahead: int | None = None,
    ) -> Iterator[Outcome]:
        """Answer many prompts together, as fast as they go; each reply is the one that it gets alone.

        Args:
            items: Prompts as `generate` takes them, or such with settings of their own. They are taken one by
                one as there is room, so there may be any number.
            sampling: How to draw, where an item does not say.
            tools: For chats that do not say, tools in OpenAI's form.
            options: For chats that do not say, options of the template.
            ahead: Most items that are open at a time; by default twice as many as are answered at once.

        Yields:
            The outcome of each item, in their order: its reply, or why there is none. Where the iterator is
            dropped, what is open is cancelled.

        Raises:
            InvalidArgument: `ahead` is less than 1.
            EngineClosed: The engine is closed or was made before a fork.
            EngineFailed: The engine's thread died.
        """
        if ahead is not None and (isinstance(ahead, bool) or not isinstance(ahead, int) or ahead < 1):
            raise InvalidArgument(f"ahead is {ahead!r}, expected 1 or more")

        def submit(given: PromptLike | BatchItem) -> Request:
            item = given if isinstance(given, BatchItem) else BatchItem(given)
            chat = is_chat(item.prompt)
            return self.submit(
                item.prompt,
                sampling=item.sampling or sampling,
                tools=tools if chat and item.tools is None else item.tools,
                options=options if chat and item.options is None else item.options,
            )

        return answered(items, submit, ahead or AHEAD * self.parallel)

    def check_prompt(self, prompt: str | Sequence[int]) -> list[int]:
        """Read a prompt that is not a chat, as `generate` does; returns its token ids.

        Raises:
            InvalidArgument: It cannot be read or is too long.
        """
        ids = self._reader.read(prompt, None, None).token_ids
        if len(ids) > self.context:
            raise ContextExceeded("prompt", _too_long(len(ids), self.context))
        return ids

    async def read_async(
        self,
        prompt: PromptLike,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        options: TemplateOptions | None = None,
    ) -> ReadPrompt:
        """Read a prompt once for several requests; arguments and errors are those of `generate`.

        Where its task is cancelled, pictures and videos are left that have not been begun.
        """
        self._require_process()
        return await self._reader.read_async(prompt, tools, options)

    def most_media_bytes(self, messages: Sequence[Mapping[str, Any]]) -> int:
        """Bound what the pictures and videos of a chat take of memory once they are prepared."""
        return self._media.most_bytes(messages)

    async def generate_async(
        self,
        prompt: PromptLike,
        *,
        sampling: Sampling | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        options: TemplateOptions | None = None,
    ) -> AsyncRequest:
        """Like `generate`, for asyncio: `async for event in await engine.generate_async(...)`."""
        read = await self.read_async(prompt, tools=tools, options=options)
        sampling = sampling or Sampling()
        compiled = await self._grammars.compile_async(sampling.grammar) if sampling.grammar else None
        inbox = Inbox()
        job, seed = self._job(read, sampling, partial(self._mailbox().put, inbox), compiled)
        cancel = partial(self._cancel, job)
        request = AsyncRequest(job.id, seed, read.token_ids, cancel, self._require_process, inbox)
        self._thread.submit(job)
        return request

    def close(self, timeout_s: float | None = None) -> bool:
        """End requests at once, with EngineClosed, and the thread after the step it is in. Idempotent.

        In a process that was forked off this does nothing.

        Returns:
            Whether the thread has ended within the time.
        """
        return _close(*self._closing, timeout_s)

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Engine:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.close)

    def _mailbox(self) -> Mailbox:
        """Find the way into the event loop that runs here."""
        loop = asyncio.get_running_loop()
        mailbox: Mailbox | None = getattr(self._loops, "mailbox", None)
        if mailbox is None or mailbox.loop is not loop:
            mailbox = self._loops.mailbox = Mailbox(loop)
        return mailbox

    def _cancel(self, job: Job) -> None:
        # In a forked child the thread's locks may be held for ever, and there is nothing to cancel.
        if os.getpid() == self._process:
            self._thread.cancel(job)

    def _require_process(self) -> None:
        if os.getpid() != self._process:
            raise EngineClosed(
                f"the engine was made by process {self._process} and cannot be used in process {os.getpid()} "
                "that was forked off it; make an engine after the fork"
            )

    def _job(
        self, prompt: ReadPrompt, sampling: Sampling, deliver: Deliver, grammar: Compiled | None
    ) -> tuple[Job, int]:
        """Turn a request into a job, and check all of it; the seed is drawn here."""
        if self._guard.full:
            self._thread.nudge()  # it lets the cache give way
            raise MemoryShort(
                f"the process takes {size(self._guard.used_bytes)} of the {size(self.plan.limit_bytes)} that "
                f"it may; try again later, or start with a higher {self._names.name('load_limit_gib')} or a "
                f"smaller {self._names.name('prefix_cache_gib')}"
            )
        ids, chat = prompt.token_ids, prompt.chat
        left = self.context - len(ids)
        if left < 1:
            raise ContextExceeded(
                "messages" if chat else "prompt",
                f"{_too_long(len(ids), self.context)}, at least one of the reply included",
            )
        if sampling.max_tokens is not None and sampling.max_tokens > self.context:
            raise InvalidField(
                "max_tokens", f"expected 1 to {self.context}, the context, found {sampling.max_tokens}"
            )
        for name, used in (("logit_bias", sampling.logit_bias), ("stop_token_ids", sampling.stop_token_ids)):
            for token_id in used:
                self._reader.check_id(name, token_id)
        seed = self._random_bits(SEED_BITS) if sampling.seed is None else sampling.seed % 2**64
        drawn = sampling.to_core(self._defaults, seed)
        drawn.check(self.tokenizer.n_tokens)
        limited = chat is not None and sampling.thinking_budget is not None
        job = Job(
            id=next(self._numbers),
            prompt=prompt.tokens,
            max_tokens=min(sampling.max_tokens or left, left),
            stop_ids=(frozenset() if sampling.ignore_eos else self._stop_ids)
            | frozenset(sampling.stop_token_ids),
            foreign_stops=frozenset(sampling.stop_token_ids) - self._stop_ids,
            sampling=drawn,
            logprobs=sampling.logprobs is not None,
            scores=sampling.prompt_logprobs,
            n_drafts=self._n_drafts if sampling.draft else 0,
            text=ReplyText(
                self.tokenizer,
                tuple(sampling.stop),
                chat,
                one_call=not sampling.parallel_calls,
                max_thoughts=sampling.thinking_budget,
            ),
            deliver=deliver,
            background=sampling.priority == "background",
            closing=tuple(closing_ids(self.tokenizer)) if limited else (),
            cache=sampling.cache,
            places=prompt.places,
            frame=prompt.frame,
            goes_on=prompt.goes_on,
            grammar=grammar,
            thinks=chat is not None and chat.in_thinking,
        )
        if sampling.cache and prompt.history is not None:
            job.said, job.ended_with = Said(), prompt.history
        return job, seed


def why_no_eyes(checkpoint: Checkpoint, vision: bool, names: Names) -> str:
    """Say why a chat that shows something is refused, and what to do."""
    if checkpoint.config.vision is None:
        return "this checkpoint has no vision tower, so it reads text only; send text, or load one that has"
    if not vision:
        off = names.without("vision")
        return f"pictures and videos are switched off; start without {off}, or send text"
    return "the vision tower has not been loaded; send text"


def _too_long(n: int, context: int) -> str:
    """Say so in the words that clients look for."""
    return (
        f"the prompt is too long: it has {n} tokens, and this model's maximum context length is {context} "
        "tokens"
    )


def _plan(
    path: str | Path,
    device: str | _core.Device,
    settings: PlanSettings,
    *,
    draft_head: bool,
    limits: Limits | None,
) -> tuple[MemoryPlan, Checkpoint, _core.Device, VisionRoom | None]:
    """Open checkpoint and device, which allocates nothing of either, and plan.

    The vision tower is planned for media within `limits`; None: for no tower.
    """
    checkpoint = open_checkpoint(path)
    opened = open_device(device) if isinstance(device, str) else device
    config = checkpoint.config if draft_head else replace(checkpoint.config, n_mtp_layers=0)
    alignment = opened.limits.tensor_alignment
    weights, room = weight_sizes(config, checkpoint.tensors, alignment), None
    if limits is not None and config.vision is not None:
        room = vision_room_of(Path(path), config, checkpoint.tensors, limits, settings.names, alignment)
    machine = Machine(ram_bytes(), opened.limits.working_set_bytes, opened.limits.workers)
    return make_plan(config, weights, replace(settings, vision=room), machine), checkpoint, opened, room


def _guard(plan: MemoryPlan, core: LoadedCore, n_running: Callable[[], int], program_bytes: int) -> Guard:
    """Watch the memory of a process that had so many bytes before the engine was made."""
    mapped = plan.weights.total_bytes - plan.weights.copied_bytes
    fixed = plan.weights.total_bytes + plan.scratch_bytes + plan.features_bytes + plan.margin_bytes

    def accounted() -> int:
        pages = (core.n_pages - core.free_pages()) * core.page_bytes
        return fixed + n_running() * plan.session_bytes + pages + core.snapshot_bytes()

    footprint = own_footprint(program_bytes, plan.margin_bytes, mapped)
    return Guard(
        plan.limit_bytes, plan.total_bytes, accounted, footprint, core.idle_page_bytes, time.monotonic
    )


def _close(
    thread: EngineThread,
    histories: Histories,
    grammars: Grammars,
    media: ChatMedia,
    process: int,
    timeout_s: float | None,
) -> bool:
    if os.getpid() != process:
        return True
    histories.close()
    grammars.close()
    media.close()
    return thread.close(timeout_s)
