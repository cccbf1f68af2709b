"""Fast Python rendering of chat_template.jinja, as (text, loss weight) segments, and the tokenizer.

check_parity.py checks that the joined segments equal what the Jinja template produces.
"""

from __future__ import annotations

import json

SPECIALS = [
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
    "<|video_pad|>",
]
# as in the Qwen tokenizers, think and tool markers are added tokens but not "special" (they stay in decoded
# text)
NOT_SPECIAL = {"<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"}
PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
TOOLS_HEAD = "# Tools\n\nYou have access to the following functions:\n\n<tools>"
TOOLS_TAIL = (
    "\n</tools>\n\nTo call a function, reply in this format only:\n\n<tool_call>\n<function=function_name>\n"
    "<parameter=parameter_name>\nvalue\n</parameter>\n</function>\n</tool_call>\n\nGive all required "
    "parameters. "
    "If no function fits, answer directly."
)


def content_text(content, media_text):
    """`media_text` is an iterator over the placeholder text of each picture or video, in order."""
    if isinstance(content, str):
        return content.strip()
    out = ""
    for item in content:
        out += item["text"] if item["type"] == "text" else next(media_text)
    return out.strip()


def render(messages, tools=None, media_text=(), prompt_weight=0.05):
    """Segments of a finished chat; assistant turns carry weight 1, prompts `prompt_weight`."""
    media_text = iter(media_text)
    segs = []
    system = ""
    if messages[0]["role"] == "system":
        system, start = content_text(messages[0]["content"], media_text), 1
    else:
        start = 0
    if tools:
        segs.append(
            (
                "<|im_start|>system\n"
                + TOOLS_HEAD
                + "".join("\n" + json.dumps(t, ensure_ascii=False) for t in tools)
                + TOOLS_TAIL
                + ("\n\n" + system if system else "")
                + "<|im_end|>\n",
                0.0,
            )
        )
    elif system:
        segs.append(("<|im_start|>system\n" + system + "<|im_end|>\n", prompt_weight))
    for i in range(start, len(messages)):
        m = messages[i]
        text = content_text(m["content"], media_text)
        if m["role"] in ("user", "system"):
            segs.append((f"<|im_start|>{m['role']}\n{text}<|im_end|>\n", prompt_weight))
        elif m["role"] == "assistant":
            head, body = "<|im_start|>assistant\n", text
            think = m.get("reasoning_content")
            if think is None:
                head += "<think>\n\n</think>\n\n"
            else:
                head, body = head + "<think>\n", think.strip() + "\n</think>\n\n" + text
            for j, call in enumerate(m.get("tool_calls") or []):
                f = call["function"]
                body += (
                    ("\n\n" if text else "") if j == 0 else "\n"
                ) + f"<tool_call>\n<function={f['name']}>\n"
                for k, v in f["arguments"].items():
                    body += f"<parameter={k}>\n{v if isinstance(v, str) else json.dumps(v)}\n</parameter>\n"
                body += "</function>\n</tool_call>"
            segs += [(head, 0.0), (body + "<|im_end|>", 1.0), ("\n", 0.0)]
        else:
            segs.append(
                (
                    ("<|im_start|>user" if messages[i - 1]["role"] != "tool" else "")
                    + f"\n<tool_response>\n{text}\n</tool_response>"
                    + ("" if i + 1 < len(messages) and messages[i + 1]["role"] == "tool" else "<|im_end|>\n"),
                    0.0,
                )
            )
    return segs


def train_tokenizer(texts, vocab_size, path):
    from tokenizers import (
        AddedToken,
        Regex,
        Tokenizer,
        decoders,
        models,
        normalizers,
        pre_tokenizers,
        trainers,
    )

    tok = Tokenizer(models.BPE(byte_fallback=False))
    tok.normalizer = normalizers.NFC()
    tok.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PATTERN), behavior="isolated", invert=False),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tok.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - len(SPECIALS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        special_tokens=[],
        show_progress=False,
        min_frequency=2,
    )
    tok.train_from_iterator(texts, trainer)
    tok.add_tokens([AddedToken(s, special=s not in NOT_SPECIAL, normalized=False) for s in SPECIALS])
    assert tok.get_vocab_size() == vocab_size, tok.get_vocab_size()
    tok.save(str(path))
    return tok
