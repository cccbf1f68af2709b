"""How far llama.cpp is from transformers in float32 on a converted checkpoint."""

from __future__ import annotations

from pathlib import Path

import llamacpp
import torch
from checkpoint_files import Checkpoint
from make_gguf import gguf_path, write_gguf
from transformers import AutoModelForCausalLM


def check(root: Path, kind: str, out: Path, threads: int, n_prompt: int = 160, n_greedy: int = 64) -> None:
    """Print the distance of the logits of every prompt row, then of greedy tokens.

    Twice where the prompt is longer than the index budget. With the checkpoint's own budget llama.cpp always
    selects budget + 3 positions, where the model takes whole blocks up to the budget and a tail of n % 4: so
    rows that see n > budget + 3 positions differ unless n % 4 == 3. With a budget beyond the prompt every row
    must agree.

    Args:
        root: The Hugging Face checkpoint.
        kind: Type of the GGUF file, "f32" or "bf16".
        out: The folder of the GGUF file.
        threads: Threads of llama.cpp.
        n_prompt: Prompt tokens.
        n_greedy: Tokens decoded after it.
    """
    model = AutoModelForCausalLM.from_pretrained(root, dtype=torch.float32).eval()
    text = Checkpoint(root).text_config
    budget, n_rows = text["indexer_budget"], n_prompt + n_greedy
    draw = torch.Generator().manual_seed(1)
    prompt = torch.randint(text["vocab_size"] - 300, (n_prompt,), generator=draw).tolist()
    prompt[n_prompt // 3] = text["eos_token_id"]  # the n-gram hash restarts here

    with torch.inference_mode():
        path = gguf_path(out, root, kind)
        spread = model(torch.tensor([prompt])).logits.std()
        print(f"{path.name} against transformers float32 (logits of std {spread:.2f})")
        if n_rows > budget:
            ours, theirs, _ = _compare(model, path, prompt, n_greedy, threads)
            n = torch.arange(1, n_rows + 1)
            whole = (n <= budget + 3) | (n % 4 == 3)
            _report(f"budget {budget}, rows where the selections agree", ours[whole], theirs[whole])
            what = f"budget {budget}, rows where llama.cpp selects 1 to 3 positions more"
            _report(what, ours[~whole], theirs[~whole])
            for layer in model.model.layers:
                if hasattr(layer, "self_attn"):
                    indexer = layer.self_attn.indexer
                    indexer.token_budget, indexer.block_topk = n_rows, n_rows // indexer.compress_ratio
            path = gguf_path(out, root, f"{kind}-dense")
            write_gguf(root, path, kind, budget=n_rows)
        ours, theirs, n_equal = _compare(model, path, prompt, n_greedy, threads)
        _report("selection not biting, prompt and greedy rows", ours, theirs)
        print(f"  greedy: {n_equal} of {n_greedy} tokens equal")


def _compare(
    model: torch.nn.Module, path: Path, prompt: list[int], n_greedy: int, threads: int
) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Logits of all rows, from llama.cpp and transformers, and the number of equal greedy tokens."""
    source = llamacpp.Model(path)
    session = llamacpp.Session(source, len(prompt) + n_greedy, threads=threads, exact=True)
    ours = [torch.from_numpy(session.decode([(x, i, 0) for i, x in enumerate(prompt)], want="all"))]
    state = model(torch.tensor([prompt]), use_cache=True)
    theirs, n_equal = [state.logits[0]], 0
    for i in range(len(prompt), len(prompt) + n_greedy):
        token = int(theirs[-1][-1].argmax())
        n_equal += token == int(ours[-1][-1].argmax())
        ours.append(torch.from_numpy(session.decode([(token, i, 0)])))
        state = model(torch.tensor([[token]]), past_key_values=state.past_key_values, use_cache=True)
        theirs.append(state.logits[0])
    session.close()
    source.close()
    return torch.cat(ours), torch.cat(theirs), n_equal


def _report(what: str, ours: torch.Tensor, theirs: torch.Tensor) -> None:
    worst = (ours - theirs).abs().max()
    n_same = (ours.argmax(-1) == theirs.argmax(-1)).sum()
    print(f"  {what}: {len(ours)} rows, max |logit difference| {worst:.1e}, same best token in {n_same}")
