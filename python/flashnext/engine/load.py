"""From a checkpoint folder to a model on a device."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path

from flashnext import _core
from flashnext.checkpoint import Checkpoint, open_checkpoint, rope_tables
from flashnext.engine.defaults import MAX_WINDOW
from flashnext.engine.sizes import n_pages


@dataclass(frozen=True)
class Loaded:
    """A model on its device and what sizes it.

    Attributes:
        context: Largest prompt plus reply of a sequence, in tokens.
        dtype: "bfloat16" or "float32", of activations and caches.
        tower: The vision tower; None where none was loaded.
    """

    checkpoint: Checkpoint
    device: _core.Device
    model: _core.Model
    pool: _core.PagePool
    context: int
    dtype: str
    tower: _core.Tower | None = None


def load_model(
    path: str | Path | Checkpoint,
    *,
    device: str | _core.Device = "auto",
    path_name: str = "",
    threads: int = 0,
    dtype: str = "bfloat16",
    context: int | None = None,
    sequences: int = 1,
    cache_pages: int = 0,
    max_chunk: int = 512,
    max_window: int = MAX_WINDOW,
    draft_head: bool = True,
    streamed_table: bool = False,
    max_patches: int = 0,
    shuffle_seed: int = 0,
    prompt_order: str = "as windows",
) -> Loaded:
    """Validate a checkpoint, map its tensors and size the page pool.

    Args:
        path: Checkpoint folder, or one already opened.
        device: "auto", "cpu", "metal" or one that is open; only where it is opened here the next two count,
            and the last two.
        path_name: Instruction path of the CPU device, "" for the best.
        threads: Workers of the CPU device, 0 for one a processor.
        dtype: "bfloat16" or "float32", of activations and caches.
        context: Largest prompt plus reply in tokens; default what the checkpoint's config asks for.
        sequences: How many sequences of that context the pages are for.
        cache_pages: Pages beside those, for what is cached.
        max_chunk: Rows of a prompt pass, 1 to 2048.
        max_window: Rows of a window, 1 to 64.
        draft_head: Load the draft head, where the checkpoint has one.
        streamed_table: Read rows of the n-gram table from its file as they are needed, and do not count on
            it to be in memory.
        max_patches: Load the vision tower, where the checkpoint has one, with room for so many patches of a
            picture or a pair of frames; 0 for none.
        shuffle_seed: Tests: run independent work in a seeded random order; 0 in order.
        prompt_order: Tests: "reversed" lets prompt rows sum in another order than window rows.

    Raises:
        CheckpointError: The checkpoint is refused.
        InvalidArgument: A size or name is out of range.
        OutOfMemory: The system does not give the memory.
    """
    checkpoint = path if isinstance(path, Checkpoint) else open_checkpoint(Path(path))
    config = checkpoint.config
    if not draft_head:
        config = replace(config, n_mtp_layers=0)
    tokens = config.default_context if context is None else context
    inv_freq, attention_factor = rope_tables(config, tokens)
    opened = (
        open_device(device, threads, path_name, shuffle_seed, prompt_order)
        if isinstance(device, str)
        else device
    )
    model = _core.load_model(
        opened,
        asdict(config),
        checkpoint.files,
        {
            name: (t.file, t.offset, t.dtype, list(t.shape), t.batch_stride)
            for name, t in checkpoint.tensors.items()
        },
        checkpoint.zero_centred,
        dtype,
        inv_freq,
        attention_factor,
        tokens,
        max_chunk=max_chunk,
        max_window=max_window,
        streamed_table=streamed_table,
    )
    pool = _core.PagePool(model, n_pages(tokens) * sequences + cache_pages)
    tower = None
    if max_patches and config.vision is not None:
        tower = _core.load_tower(model, dict(config.vision), max_patches)
    return Loaded(checkpoint, opened, model, pool, tokens, dtype, tower)


def open_device(
    name: str = "auto",
    threads: int = 0,
    path_name: str = "",
    shuffle_seed: int = 0,
    prompt_order: str = "as windows",
) -> _core.Device:
    """Open a device; the arguments are those of `load_model`.

    Raises:
        InvalidArgument: A name is not known.
    """
    return _core.open_device(name, threads, path_name, shuffle_seed, prompt_order)
