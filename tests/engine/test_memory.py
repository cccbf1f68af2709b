"""Loading takes no more memory than the plan says: weights that are copied are not held twice."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from flashnext.engine.engine import Engine
from flashnext.engine.errors import MemoryShort
from flashnext.engine.guard import LOOK_S
from flashnext.engine.plan import MemoryPlan
from flashnext.engine.sampling import Sampling
from support.random_checkpoint import write_random

PROGRAM = """
import json, sys
from flashnext.engine.load import load_model
import numpy

def status(field):
    for line in open("/proc/self/status"):
        if line.startswith(field):
            return int(line.split()[1]) * 1024

open("/proc/self/clear_refs", "w").write("5")  # the peak counts from here
before = status("VmRSS")
loaded = load_model(sys.argv[1], context=256)
print(json.dumps([status("VmHWM") - before, loaded.model.weight_bytes, loaded.model.copied_bytes]))
"""
SLACK_BYTES = 8 << 20  # of the interpreter: headers, names, views
LARGE = {"vocab_size": 60_000, "hidden_size": 512, "num_hidden_layers": 2, "full_attention_interval": 2,
         "ple_layer_ids": [1]}  # fmt: skip


def shift_tensors(shard: Path) -> None:
    """Let the tensors of a shard begin at an odd byte, so that the device cannot use them where they lie."""
    content = shard.read_bytes()
    n = int.from_bytes(content[:8], "little")
    odd = n + (1 if n % 2 == 0 else 2)
    shard.write_bytes(odd.to_bytes(8, "little") + content[8 : 8 + n].ljust(odd) + content[8 + n :])


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("copied", [False, True], ids=["mapped", "copied"])
def test_the_peak_of_loading_is_that_of_the_plan(tmp_path: Path, copied: bool) -> None:
    folder = write_random(tmp_path / "checkpoint", LARGE, layout="mlx", bits=6)
    if copied:
        for shard in folder.glob("*.safetensors"):
            shift_tensors(shard)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(folder)], capture_output=True, text=True, check=True, timeout=120
    )
    peak, weights, copies = json.loads(done.stdout)
    assert weights > 50 << 20
    assert (copies > weights * 0.9) == copied
    assert peak <= weights * 1.1 + SLACK_BYTES


@pytest.mark.skipif(sys.platform != "linux", reason="how a mapping is read is told by /proc")
@pytest.mark.parametrize("table", ["resident", "streamed"])
def test_a_streamed_table_gives_the_same_reply_and_is_read_row_by_row(table: str) -> None:
    prompt, settings = list(range(40, 90)), Sampling(temperature=0, max_tokens=12)
    with Engine() as engine:
        expected = engine.submit(prompt, sampling=settings).result().token_ids
    plans: list[MemoryPlan] = []
    before = _read_at_random()
    with Engine(ngram_table=table, planned=plans.append) as engine:
        assert engine.submit(prompt, sampling=settings).result().token_ids == expected
        model = engine.loaded.model
        assert plans[0].weights.streamed_bytes == model.streamed_bytes
        assert (plans[0].ngram_table, model.streamed_bytes > 0) == (table, table == "streamed")
        read_at_random = _read_at_random() - before
        if table == "streamed":  # pages that the table shares with its neighbours count too
            assert read_at_random >= model.streamed_bytes
        else:
            assert read_at_random == 0


def _read_at_random() -> int:
    """Bytes that this process has mapped to be read at random."""
    size_bytes = found = 0
    for line in Path("/proc/self/smaps").read_text().splitlines():
        name, _, rest = line.partition(":")
        if name == "Size":
            size_bytes = int(rest.split()[0]) * 1024
        elif name == "VmFlags" and "rr" in rest.split():
            found += size_bytes
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="what a process has is told by /proc")
def test_what_a_program_had_before_is_not_held_against_an_engine_and_what_comes_later_is() -> None:
    before = np.ones(32 << 20)  # 256 MiB
    with Engine(parallel=1, context=512, prefix_cache_gib=0, load_limit_gib=0.25) as engine:
        assert engine.plan.total_bytes < engine.plan.limit_bytes < engine.plan.total_bytes + before.nbytes
        assert engine.submit("1 2 3").result().text
        after = np.ones(engine.plan.limit_bytes // 8)
        time.sleep(2 * LOOK_S)
        with pytest.raises(MemoryShort):
            engine.submit("1 2 3")
        del after
        time.sleep(2 * LOOK_S)
        assert engine.submit("1 2 3").result().text
