"""Batches over several machines by Ray Data: one worker a machine, each with an engine of its own.

Needs the extra `ray`. Each machine joins the cluster with the resource of which a worker takes all:

    ray start --address HEAD:6379 --resources '{"flashnext": 1}'
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import ray
from ray.data import ActorPoolStrategy, Dataset

from flashnext.engine.engine import BUNDLED, Engine
from flashnext.engine.many import AHEAD, Outcome
from flashnext.engine.many import answered as answered_by
from flashnext.engine.request import Request
from flashnext.engine.sampling import Sampling
from flashnext.errors import FlashnextError, InvalidArgument
from flashnext.text.jsontext import dumps
from flashnext.text.template import TemplateOptions

RESOURCE = "flashnext"
"""What a machine has one of, so that it gets one worker."""

COLUMNS = pa.schema(
    [
        ("text", pa.string()),
        ("reasoning", pa.string()),
        ("tool_calls", pa.string()),
        ("finish_reason", pa.string()),
        ("prompt_tokens", pa.int64()),
        ("completion_tokens", pa.int64()),
        ("token_sha", pa.string()),
        ("seed", pa.uint64()),
        ("error", pa.string()),
    ]
)
"""What is added to each row; where there is no reply all is null but `error`, and with one only that is."""


class Worker:
    """Answers blocks of rows on one machine; an actor of Ray's."""

    def __init__(
        self,
        model: str,
        engine: Mapping[str, Any],
        sampling: Sampling,
        options: TemplateOptions | None,
    ) -> None:
        """Load the model; arguments are those of `answered`."""
        self._engine = Engine(model, **engine)
        self._sampling = sampling
        self._options = options

    def __call__(self, rows: pa.Table) -> pa.Table:
        """Answer the rows of a block."""
        given = rows.to_pylist()
        outcomes = answered_by(given, self._submit, AHEAD * self._engine.parallel)
        added = pa.Table.from_pylist([_columns(outcome) for outcome in outcomes], schema=COLUMNS)
        kept = [name for name in rows.column_names if name not in COLUMNS.names]
        for name in kept:
            added = added.append_column(rows.schema.field(name), rows.column(name))
        return added.select([*kept, *COLUMNS.names])

    def _submit(self, row: Mapping[str, Any]) -> Request:
        """Begin the reply to a row.

        Raises:
            FlashnextError: There is none: it is the row's error, and no other row's.
        """
        seed, messages = row.get("seed"), row.get("messages")
        prompt, options = row.get("prompt"), None
        try:
            sampling = self._sampling if seed is None else replace(self._sampling, seed=seed)
            if messages is not None:
                # What one message of a column has, all have, as null.
                prompt = [
                    {name: part for name, part in turn.items() if part is not None} for turn in messages
                ]
                options = self._options
        except (AttributeError, TypeError) as error:
            raise InvalidArgument(
                "the row is no request: expected turns of a chat in messages, or text or ids in prompt; "
                f"{error}"
            ) from None
        if prompt is None:
            raise InvalidArgument("the row is no request: it has neither messages nor a prompt")
        return self._engine.submit(prompt, sampling=sampling, options=options)


def answered(
    dataset: Dataset,
    model: str | Path = BUNDLED,
    *,
    sampling: Sampling | None = None,
    options: TemplateOptions | None = None,
    engine: Mapping[str, Any] | None = None,
    rows: int = 256,
) -> Dataset:
    """Answer each row of a dataset; lazily, as Ray Data does everything.

    Args:
        dataset: With a column `messages`, the turns of a chat, or `prompt`, a text or token ids. A column
            `seed` says how a row's reply is drawn.
        model: Folder of a checkpoint, that each machine has.
        sampling: How to draw.
        options: Of the chat template.
        engine: Further arguments of `Engine`.
        rows: Of a block; several times as many as are answered at once, so that workers are kept busy.

    Returns:
        The dataset with the columns of `COLUMNS`. A row's reply is the one that it gets anywhere else.

    Raises:
        InvalidArgument: No machine of the cluster has the resource, or an argument is out of its range.
    """
    if rows < 1:
        raise InvalidArgument(f"rows is {rows!r}, expected 1 or more")
    workers = int(ray.cluster_resources().get(RESOURCE, 0))
    if workers < 1:
        raise InvalidArgument(
            f"no machine of the cluster has the resource {RESOURCE!r}; start each with "
            f"`ray start --resources '{{\"{RESOURCE}\": 1}}'`, or a single one with "
            f'ray.init(resources={{"{RESOURCE}": 1}})'
        )
    return dataset.map_batches(
        Worker,
        fn_constructor_args=(str(model), dict(engine or {}), sampling or Sampling(), options),
        batch_size=rows,
        batch_format="pyarrow",
        compute=ActorPoolStrategy(size=workers),
        num_cpus=0,  # the resource alone decides, and tasks that read and write keep theirs
        resources={RESOURCE: 1},
    )


def _columns(outcome: Outcome) -> dict[str, Any]:
    try:
        reply = outcome.reply
    except FlashnextError as error:
        return {"error": str(error)}
    calls = [{"name": call.name, "arguments": call.arguments} for call in reply.tool_calls]
    return {
        "text": reply.text,
        "reasoning": reply.reasoning,
        "tool_calls": dumps(calls) if calls else None,
        "finish_reason": reply.finish_reason,
        "prompt_tokens": reply.usage.prompt_tokens,
        "completion_tokens": reply.usage.completion_tokens,
        "token_sha": reply.token_sha,
        "seed": reply.seed,
    }
