"""What a reply cost and how it was made, as responses tell it."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import zip_longest
from typing import Any

from flashnext.engine.events import Drafts, Event, Reply, Usage


def usage_of(usages: Iterable[Usage]) -> dict[str, Any]:
    """Add up the usage of all replies to one prompt, which is counted once."""
    found = list(usages)
    prompt = max((u.prompt_tokens for u in found), default=0)
    completion = sum(u.completion_tokens for u in found)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        # What the first of them read, the others found read.
        "prompt_tokens_details": {"cached_tokens": min((u.cached_tokens for u in found), default=0)},
        "completion_tokens_details": {"reasoning_tokens": sum(u.reasoning_tokens for u in found)},
    }


def total(parts: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Add up usages, field by field."""
    out: dict[str, Any] = usage_of(())
    for part in parts:
        for name, value in part.items():
            if isinstance(value, dict):
                out[name] = {key: out[name][key] + n for key, n in value.items()}
            else:
                out[name] += value
    return out


def told_reason(reason: str, n_calls: int) -> str:
    """Say why a reply ended, as responses and the log do: one that called tools ended with them."""
    return "tool_calls" if n_calls and reason == "stop" else reason


def extras(last: Event | Reply, seed: int) -> dict[str, Any]:
    """Write the object `flashnext` of a choice: its fingerprint, its seed, and how it was made.

    Args:
        last: The last event of the reply, or all of it.
        seed: That the choice was drawn with.
    """
    out: dict[str, Any] = {"token_sha": last.token_sha, "seed": seed}
    if last.timings is not None:
        out["timings"] = {name: _rounded(ms) for name, ms in vars(last.timings).items()}
    if last.drafts is not None:
        out["drafts"] = {"proposed": last.drafts.proposed, "accepted": last.drafts.accepted}
    return out


def speculation(drafts: Iterable[Drafts | None]) -> dict[str, Any]:
    """Write `metrics` of a response, as vLLM does: its rounds with drafts, by how many of them were kept.

    Nothing where there were none.
    """
    kept = [sum(counts) for counts in zip_longest(*(one.kept for one in drafts if one), fillvalue=0)]
    if not any(kept):
        return {}
    return {"metrics": {"speculative_decoding": {"num_spec_steps": sum(kept), "acceptance_histogram": kept}}}


def _rounded(ms: float | None) -> float | None:
    return None if ms is None else round(ms, 3)
