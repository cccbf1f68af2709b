"""Records how transformers renders chats: `python make_chat_prompts.py ../tiny/hf chat_prompts.json.gz`, with
transformers.

Each case is rendered with the checkpoint's own template and with strict_template.jinja; a template's refusal
is recorded as its sentence. No case spells a control token in its text, since transformers would read it as
one.
"""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path
from typing import Any

import jinja2
import transformers

TOOL = {
    "type": "function",
    "function": {
        "name": "book_room",
        "description": "Bucht ein Zimmer für <name> & co.",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string"},
                "nights": {"type": "integer", "maximum": 9007199254740993},
            },
            "required": ["city"],
        },
    },
}
ZEBRA = {
    "type": "function",
    "function": {"name": "zebra", "parameters": {"z": 1, "a": [1.5, None, True, "é"]}},
}


def call(name: str, **arguments: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "arguments": arguments}}


def user(text: Any) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: str | None, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **more}


SYSTEM = {"role": "system", "content": "  You are terse.\n"}
LOOKUP = [
    user("Book Köln, 2 nights"),
    assistant("", reasoning_content="I call.", tool_calls=[call("book_room", city="Köln", nights=2)]),
    {"role": "tool", "content": '{"ok": true}'},
]
CASES: dict[str, dict[str, Any]] = {
    "one question": {"messages": [user("Hello!")]},
    "system and white space": {"messages": [SYSTEM, user("\n  a  b \t\n")]},
    "text parts": {"messages": [user([{"type": "text", "text": "a "}, {"type": "text", "text": " b"}])]},
    "history with reasoning": {"messages": [user("1"), assistant("A", reasoning_content=" r\n"), user("2")]},
    "thoughts inside content": {"messages": [user("1"), assistant("<think>\nr\n</think>\n\nA"), user("2")]},
    "thoughts dropped": {
        "messages": [
            user("1"),
            assistant("A", reasoning_content="r"),
            user("2"),
            assistant("B", reasoning_content="s"),
        ],
        "options": {"preserve_thinking": False},
    },
    "null content": {
        "messages": [user("1"), assistant(None, tool_calls=[call("zebra")]), {"role": "tool", "content": "x"}]
    },
    "tools": {"messages": [SYSTEM, user("go")], "tools": [TOOL, ZEBRA]},
    "tool loop": {"messages": LOOKUP, "tools": [TOOL]},
    "tool loop without thinking": {
        "messages": LOOKUP,
        "tools": [TOOL],
        "options": {"enable_thinking": False},
    },
    "two calls and two results": {
        "messages": [
            user("go"),
            assistant(
                "Both:",
                tool_calls=[
                    call("book_room", city="a\nb", nights=None),
                    call("zebra", x=[1, {"k": "ü"}], y=True, z=1234567890123456789, w=0.1),
                ],
            ),
            {"role": "tool", "content": " one "},
            {"role": "tool", "content": [{"type": "text", "text": "two"}]},
            assistant("Done."),
            user("thanks"),
        ],
        "tools": [TOOL, ZEBRA],
    },
    "thinking off": {"messages": [SYSTEM, user("x")], "options": {"enable_thinking": False}},
    "low effort": {"messages": [user("x")], "options": {"reasoning_effort": "low"}},
    "medium effort": {"messages": [SYSTEM, user("x")], "options": {"reasoning_effort": "medium"}},
    "unknown effort": {"messages": [user("x")], "options": {"reasoning_effort": "huge"}},
    "unknown effort, thinking off": {
        "messages": [user("x")],
        "options": {"reasoning_effort": "huge", "enable_thinking": False},
    },
    "unicode": {"messages": [user("e\u0301 \u212b \U0001f469\u200d\U0001f680 नमस्ते 12345 \u0000 end")]},
    "late system": {
        "messages": [user("1"), assistant("A"), {"role": "system", "content": "Be kind."}, user("2")]
    },
    "no user": {"messages": [SYSTEM, assistant("A")]},
}


def record(folder: str, out: str) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    templates = {
        "checkpoint": None,
        "strict": (Path(__file__).parent / "strict_template.jinja").read_text(encoding="utf-8"),
    }
    lines = []
    for name, case in CASES.items():
        for template, source in templates.items():
            line: dict[str, Any] = {"case": name, "template": template, **case}
            more = {"chat_template": source} if source else {}
            given = {
                "tools": case.get("tools"),
                "add_generation_prompt": True,
                **case.get("options", {}),
                **more,
            }
            try:
                line["text"] = tokenizer.apply_chat_template(case["messages"], tokenize=False, **given)
                ids = tokenizer.apply_chat_template(
                    case["messages"], tokenize=True, return_dict=True, **given
                )
                line["token_ids"] = list(ids["input_ids"])
            except jinja2.TemplateError as e:
                line["refusal"] = e.message
            lines.append(json.dumps(line, separators=(",", ":")))
    text = "[\n" + ",\n".join(lines) + "\n]\n"
    Path(out).write_bytes(gzip.compress(text.encode(), 9, mtime=0))
    print(f"{len(lines)} renderings by transformers {transformers.__version__}")


if __name__ == "__main__":
    record(*sys.argv[1:3])
