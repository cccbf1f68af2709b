"""The compiled core of flashnext."""

from collections.abc import Iterable, Mapping, Sequence
import os
from typing import Annotated

import numpy
from numpy.typing import NDArray

from flashnext._core import testing as testing
from flashnext.errors import (
    DeviceError as DeviceError,
    InvalidArgument as InvalidArgument,
    OutOfMemory as OutOfMemory,
    OutOfPages as OutOfPages
)


class Limits:
    """What a device can hold and how its arithmetic behaves."""

    @property
    def working_set_bytes(self) -> int: ...

    @property
    def max_buffer_bytes(self) -> int: ...

    @property
    def tensor_alignment(self) -> int: ...

    @property
    def workers(self) -> int: ...

    @property
    def prompt_equals_window(self) -> bool: ...

class Device:
    """A device that models run on; opened once and handed down."""

    @property
    def name(self) -> str: ...

    @property
    def identity(self) -> str:
        """What the bits of its results depend on."""

    @property
    def limits(self) -> Limits: ...

    @property
    def busy_ns(self) -> int:
        """
        Nanoseconds in which the device ran work since it was opened; waits are not in it.
        """

    @property
    def memory(self) -> tuple[int, int]:
        """
        (bytes held against the process, 0 where unknown; memory pressure: 0 normal, 1 warning, 2 critical), as the system tells a Metal device.
        """

def open_device(kind: str = 'cpu', threads: int = 0, path: str = '', shuffle_seed: int = 0, prompt_order: str = 'as windows') -> Device:
    """
    Open a device: one of device_kinds(), or 'auto': metal where there is such a GPU, else cpu. path: '' for the best instruction path, or one of instruction_paths(); of metal-host the order of threads: 'forward' (the default), 'reverse', or 'random' by shuffle_seed, and ', unchecked' behind it for kernels whose accesses nobody looks at; of cuda nothing, or some of 'graph', 'one by one' and 'device memory', with ', ' between. prompt_order: 'as windows', or, for tests, 'reversed': attention of prompt rows sums in another order, so that prompts and rounds differ.
    """

def device_kinds() -> list[str]:
    """Kinds of devices that this build has."""

def instruction_paths() -> list[str]:
    """Instruction paths this processor can run, best first."""

class Model:
    """The loaded model: weights, scratch and the layer plan."""

    @property
    def weight_bytes(self) -> int: ...

    @property
    def streamed_bytes(self) -> int: ...

    @property
    def copied_bytes(self) -> int: ...

    @property
    def scratch_bytes(self) -> int: ...

    @property
    def vocab_size(self) -> int: ...

    @property
    def context(self) -> int: ...

    @property
    def page_bytes(self) -> int: ...

    @property
    def snapshot_bytes(self) -> int:
        """Of a session's recurrent block."""

    @property
    def identity(self) -> str:
        """
        What the bits of a state and where they lie depend on, the checkpoint aside, in words.
        """

def load_model(device: Device, config: dict, files: Sequence[str | os.PathLike], tensors: Mapping[str, tuple[int, int, str, Sequence[int], int]], zero_centred: bool, dtype: str, inv_freq: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], attention_factor: float, context: int, max_chunk: int = 512, max_window: int = 16, max_round: int = 64, max_sequences: int = 64, streamed_table: bool = False) -> Model:
    """
    Place a checkpoint's tensors on the device. tensors: name -> (file index, offset, dtype, shape, batch stride).
    """

class PagePool:
    """Pages of 64 positions that hold the attention caches of all sequences."""

    def __init__(self, model: Model, n_pages: int) -> None: ...

    @property
    def free(self) -> int: ...

    @property
    def total(self) -> int: ...

    @property
    def page_bytes(self) -> int: ...

    @property
    def allocated_bytes(self) -> int: ...

    def trim(self, n_pages: int) -> None:
        """
        Give back memory that no page in use lies in, until at most so many pages are allocated.
        """

    @property
    def of_snapshots(self) -> int:
        """Pages that snapshots have and no session."""

    @property
    def block_bytes(self) -> int:
        """What the recurrent blocks of snapshots take."""

class Snapshot:
    """Where a session stood behind n tokens; others go on from there."""

    @staticmethod
    def restore(model: Model, pool: PagePool, n: int, block: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], pages: Sequence[Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)] | tuple[Snapshot, int]]) -> Snapshot:
        """
        A snapshot of what read_block and read_page gave; each page as bytes, or as (snapshot, index).
        """

    @property
    def n(self) -> int:
        """Positions that it covers."""

    @property
    def page_ids(self) -> tuple[int, ...]:
        """Of its pages, by position; none after close()."""

    def read_block(self) -> Annotated[NDArray[numpy.uint8], dict(shape=(None,))]:
        """A copy of the recurrent block."""

    def read_page(self, index: int) -> Annotated[NDArray[numpy.uint8], dict(shape=(None,))]:
        """A copy of a page; what the snapshot does not cover is zero."""

    def close(self) -> None:
        """Give block and pages back; idempotent, from any thread."""

class Features:
    """Rows of a picture or a video that stand in for embeddings."""

    def __init__(self, model: Model, values: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)]) -> None:
        """values: (n, hidden) float32; kept in the activations' type."""

    @property
    def n(self) -> int:
        """Rows."""

class Session:
    """What one sequence owns on the device."""

    def __init__(self, model: Model, pool: PagePool) -> None: ...

    @property
    def length(self) -> int:
        """Committed positions."""

    @property
    def head_length(self) -> int:
        """Positions the draft head has absorbed."""

    @property
    def n_pages(self) -> int: ...

    @property
    def size_bytes(self) -> int: ...

    @property
    def rotary_delta(self) -> int:
        """
        What the rotary positions of rows behind its prompt are beyond their positions.
        """

    def set_frame(self, rows: Annotated[NDArray[numpy.int32], dict(shape=(None, 3), order='C', device='cpu', writable=False)]) -> None:
        """
        Say where the rows of its prompt stand on the rotary axes, (n, 3); rows behind them go on from there, alike on all axes. Without, rows stand at their positions. A session that was resumed or forked is given the same for the rows that it has; before its reply begins.
        """

    def keep(self, n: int) -> None:
        """Commit the first n rows of the last window."""

    def fork(self) -> Session:
        """
        A session with the same committed positions, which shares all pages but the last; between prompt passes only.
        """

    @staticmethod
    def resume(snapshot: Snapshot, tokens: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> Session:
        """
        A session that stands where the snapshot was taken, of the tokens that it was made of.
        """

    def close(self) -> None:
        """Give pages and memory back; idempotent."""

class Sampling:
    """How tokens are drawn; see cpp/rounds/sampler.h."""

    def __init__(self, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0, seed: int = 0, presence: float = 0.0, frequency: float = 0.0, repetition: float = 1.0, bias: Mapping[int, float] = {}, logprobs: int = -1) -> None: ...

    def check(self, n_valid: int) -> None:
        """Raise InvalidArgument naming the first value out of range."""

class Drawn:
    """A token that was drawn."""

    @property
    def token(self) -> int: ...

    @property
    def logprob(self) -> float:
        """Its log-probability, where the sampling asks for it."""

    @property
    def top(self) -> list[tuple[int, float]]:
        """[(id, log-probability), ...] of the likeliest ids."""

    @property
    def logits_hash(self) -> int:
        """Of the row it was drawn from, where hashes are kept."""

class Runner:
    """Runs prompt chunks and rounds over the sessions of one model."""

    def __init__(self, model: Model, n_valid: int = 0) -> None: ...

    @property
    def max_chunk(self) -> int: ...

    def keep_hashes(self, keep: bool) -> None:
        """
        Tests: whether tokens carry a hash of the logits that they were drawn from.
        """

    def prompt(self, session: Session, tokens: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], last: bool, sampling: Sampling, n_drafts: int = 0, media: Sequence[tuple[int, Features, int, int]] = []) -> list[Drawn]:
        """
        Read one prompt chunk; with last, draw the first reply token and up to n_drafts drafts. media: (first row, features, first of them, how many) of the rows that show some.
        """

    def round(self, sessions: Sequence[Session], n_drafts: Sequence[int] = []) -> list[list[Drawn]]:
        """
        Feed each session's pending token and drafts; return what was drawn, one token or more each. n_drafts: most drafts of each one's next round, by default none.
        """

    def drafts(self, session: Session) -> list[int]:
        """The drafts that the session's next round verifies."""

    def draft_counts(self, session: Session) -> tuple[int, int]:
        """Drafts of the reply so far: (verified, kept)."""

    def snapshot(self, session: Session) -> Snapshot:
        """Settle, then take a snapshot of where the session stands."""

    def settle(self, session: Session) -> None:
        """Apply what the last window kept."""

    def state_hash(self, session: Session) -> int:
        """
        Settle, then hash the recurrent block and the committed cache rows of the model's layers.
        """

    def head_hash(self, session: Session, n: int) -> int:
        """Hash of the draft head's first n cache rows."""

    def forward(self, parts: Sequence[tuple[Session, Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], bool]], media: Sequence[Sequence[tuple[int, Features, int, int]]] = []) -> list:
        """
        One pass over [(session, tokens, is_window), ...]; returns logits (rows, vocab) float32 of each part. media: of each part, as prompt() takes them.
        """

class Landed:
    """
    What one session got out of a round, or out of its part of a prompt pass.
    """

    @property
    def session(self) -> Session: ...

    @property
    def tokens(self) -> list[Drawn]:
        """Drawn, in the order of the reply."""

    @property
    def scores(self) -> list[Drawn]:
        """Of the chunk's scored tokens, in their order."""

    @property
    def snapshots(self, /) -> list[Snapshot | None]:
        """
        Of the chunk's marks, in their order; None where there was no memory for one.
        """

    @property
    def ended(self) -> bool:
        """A stop id, the end or NaN was seen: it has no rounds any more."""

    @property
    def proposed(self) -> int:
        """Drafts that were verified."""

    @property
    def accepted(self) -> int:
        """Those of them that were kept."""

    @property
    def copied(self) -> bool:
        """They were copied from the reply's own text."""

    @property
    def short(self) -> bool:
        """There was no page for it; nothing of it ran."""

    @property
    def error(self) -> Exception | None:
        """What failed of this session; it can only be closed."""

class Driver:
    """
    Runs prompt passes and rounds; a thread of its own commits rounds while the set that runs stays the same.
    """

    def __init__(self, model: Model, n_valid: int = 0, row_limit: int = 32, lone: bool = True, prices: bool = True, serial_drafts: bool = False, masks: object | None = None) -> None:
        """
        masks: of replies with grammars, called with (number of the grammar, tokens that were drawn since the last call, drafts behind them) by whichever thread runs passes; gives uint32 [1 + drafts, ceil(n_valid / 32)], of which bit i % 32 of word i / 32 allows id i behind the drawn tokens, and behind each draft. A row without any ends the reply, and so does an exception.
        """

    @property
    def max_chunk(self) -> int: ...

    @property
    def max_sequences(self) -> int: ...

    def begin(self, session: Session, sampling: Sampling, stop_ids: Sequence[int], n_prompt: int, end: int, known: Sequence[int] = [], most_head: int = 0, most_copied: int = 0, grammar: int = 0) -> None:
        """
        Say how the reply is drawn, before the chunk that reads the last token of the prompt. end: positions of prompt and reply together. known: tokens of the reply that rounds are fed with and draw again. most_head, most_copied: drafts of a round by the draft head, or copied from the text. grammar: a number that masks() knows; 0 for none.
        """

    def start(self, sessions: Sequence[Session]) -> None:
        """Rounds over these sessions from now on, in place of others."""

    def take(self) -> list[Landed]:
        """
        Wait until something has landed, no round can follow, or wake() was called.
        """

    def stop(self) -> list[Landed]:
        """Commit no more rounds, and wait for those in flight."""

    def step(self, chunks: Sequence[tuple[Session, Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], bool, Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], Sequence[int], Sequence[tuple[int, Features, int, int]]]], sessions: Sequence[Session]) -> list[Landed]:
        """
        Stop, then read [(session, tokens, last, scored, marks, media), ...] and run one round of the sessions. scored: tokens behind the first of them whose log-probabilities are wanted; begin() comes first then. marks: numbers of tokens behind which snapshots are taken, ascending. media: (first row, features, first of them, how many) of the rows that show some.
        """

    def snapshot(self, session: Session) -> Snapshot:
        """
        Settle a session that has nothing in flight, and take a snapshot of where it stands.
        """

    def wake(self) -> None:
        """Let take() return soon; from any thread."""

    def time_a_price(self, pool: PagePool) -> bool:
        """
        With nothing to do: time what one width of rounds costs; whether there is more to time.
        """

    def prices(self, widths: Sequence[int]) -> list[tuple[float, float]]:
        """
        Milliseconds of (a forward of w rows, a draft step of w sequences), for each w.
        """

    def counts(self) -> dict[str, int]:
        """How often its mechanisms ran since it was made."""

    def keep_hashes(self, keep: bool) -> None:
        """
        Tests: whether tokens carry a hash of the logits that they were drawn from.
        """

    def state_hash(self, session: Session) -> int:
        """
        Tests: stop, settle, then hash the session's state as Runner.state_hash does.
        """

class Tower:
    """The vision tower: its weights and the scratch of a pass."""

    @property
    def weight_bytes(self) -> int:
        """Mapped and copied; the model's own count has them too from here on."""

    @property
    def copied_bytes(self) -> int: ...

    @property
    def scratch_bytes(self) -> int: ...

    @property
    def max_patches(self) -> int: ...

    @property
    def patch_values(self) -> int: ...

    @property
    def tile_patches(self) -> int:
        """Patches that attention takes together, at most."""

    def features(self, grids: Sequence[tuple[int, int, int]], patches: Iterable[Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)]]) -> Annotated[NDArray[numpy.float32], dict(shape=(None, None))]:
        """
        Features float32 (tokens, out_hidden_size) of media with grids (t, h, w) in patches, one after the other. patches: all of them in order, as float32 arrays (n, patch_values) of any lengths; an iterable, read as there is room. What a picture, or a pair of a video's frames, comes to depends on it alone. From any thread; one call at a time runs.
        """

def load_tower(model: Model, sizes: dict, max_patches: int) -> Tower:
    """
    Place the vision tower of the model's checkpoint beside it. sizes: vision_config's integers. max_patches: of one picture or pair of frames, and of all that go through the tower together.
    """
