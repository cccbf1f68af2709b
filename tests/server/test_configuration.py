"""How a server is set up: by flags, environment and file, what is refused, and what `--print-config` says."""

from __future__ import annotations

import os
import subprocess
import tomllib
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from flashnext.cli import serve_parser
from flashnext.server.configuration import parse
from support.serving import SERVE, server_process

SUM: list[Any] = [{"role": "user", "content": "What is 3 + 4?"}]


def printed(*arguments: str, **environ: str) -> str:
    done = subprocess.run(
        [*SERVE, *arguments, "--print-config"],
        capture_output=True, text=True, timeout=60, env={**os.environ, **environ},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def configured(*arguments: str, **environ: str) -> dict[str, tuple[Any, str]]:
    """Each option with its value, None where it has none, and where that comes from."""
    text = printed(*arguments, **environ)
    values = tomllib.loads(text)
    rows = [line.removeprefix("# ").rsplit(" # ", 1) for line in text.splitlines()[1:]]
    return {name: (values.get(name), source) for row, source in rows for name in [row.split(maxsplit=1)[0]]}


def test_flags_go_before_the_environment_before_the_file_before_defaults(tmp_path: Path) -> None:
    file = tmp_path / "serve.toml"
    file.write_text('port = 1111\nmax-body = 8\nstrict_fields = true\nqueue = 3\ncors-origin = ["a", "b"]\n')
    found = configured(
        "--config", str(file), "--port", "3333", FLASHNEXT_PORT="2222", FLASHNEXT_MAX_BODY="9.5",
        FLASHNEXT_NO_THINKING="yes",
    )  # fmt: skip
    assert found["port"] == (3333, "flag")
    assert found["max-body"] == (9.5, "environment")
    assert found["no-thinking"] == (True, "environment")
    assert found["strict-fields"] == (True, str(file))
    assert found["queue"] == (3, str(file))
    assert found["cors-origin"] == (["a", "b"], str(file))
    assert found["drain"] == (10.0, "default")
    assert found["top-p"] == (None, "default")
    assert found["prefix-cache"] == found["parallel"] == ("auto", "default")


def options_of(*arguments: str) -> dict[str, Any]:
    args, _ = parse(serve_parser(), arguments, {})
    left_out = ("config", "print_config", "api_key")
    return {name: value for name, value in vars(args).items() if name not in left_out}


EVERYTHING = [
    "a folder/\u00fc\U0001f680\"\\\x7f\n#", "--offline", "--host", "::1", "--port", "0", "--context", "4096",
    "--load-limit", "0.5", "--prefix-cache", "0", "--spill-dir", "/a b/marks", "--spill-limit", "1.25",
    "--device", "cpu", "--dtype", "float32", "--parallel", "3", "--gap", "17.5", "--drafts", "2",
    "--no-vision", "--vision-image-tokens", "99", "--vision-video-tokens", "98", "--vision-max-images", "3",
    "--vision-max-videos", "2", "--round-rows", "64", "--ngram-table", "streamed",
    "--no-lone", "--serial-drafts", "--no-prices",
    "--served-model-name", "a", "--served-model-name", "b, c", "--temperature", "1e-05", "--top-p", "0.95",
    "--top-k", "-1", "--max-tokens", "77", "--no-thinking", "--strict-fields", "--api-key", "secret",
    "--api-key", "another", "--api-key-file", "keys", "--allowed-host", "x", "--cors-origin", "*",
    "--no-key-needed", "--no-page", "--max-body", "0.5", "--max-connections", "7", "--queue", "0",
    "--request-timeout", "5", "--client-timeout", "3", "--drain", "1", "--stall-timeout", "9",
    "--max-responses", "0", "--max-responses-size", "0.1", "--log-level", "debug", "--log-format", "json",
    "--log-prompts", "--record", "r", "--media-urls",
]  # fmt: skip


@pytest.mark.parametrize("arguments", [[], EVERYTHING], ids=["defaults", "everything"])
def test_a_configuration_that_is_printed_is_read_back_to_the_same(
    arguments: list[str], tmp_path: Path
) -> None:
    text = printed(*arguments)
    assert "secret" not in text and "another" not in text
    file = tmp_path / "serve.toml"
    file.write_text(text, encoding="utf-8")
    assert options_of("--config", str(file)) == options_of(*arguments)
    named = {line.removeprefix("# ").split(maxsplit=1)[0] for line in text.splitlines()[1:]}
    known = {action.dest.replace("_", "-") for action in serve_parser()._actions}
    assert named == known - {"help", "version", "config", "print-config"}
    if arguments:
        defaults = options_of()
        assert [name for name, value in options_of(*arguments).items() if value == defaults[name]] == []


def test_what_counts_where_an_option_is_not_set_is_told_as_in_help() -> None:
    rows = [line.rsplit(" # ", 1)[0].rstrip() for line in printed().splitlines()]
    assert "# spill-limit is not set: 32 where there is --spill-dir" in rows
    assert "# load-limit is not set: 70 % of the machine's" in rows
    assert "# record is not set: none" in rows
    assert not [row for row in rows if row.endswith("is not set")]


def test_a_value_that_no_file_can_have_is_left_out(tmp_path: Path) -> None:
    text = printed("--record", os.fsdecode(b"\xff"))
    assert tomllib.loads(text).get("record") is None
    assert "# record is left out: it is no text in UTF-8" in text


@pytest.mark.parametrize(
    ("arguments", "environ", "problem"),
    [
        (["--pory", "1"], {}, "did you mean --port?"),
        ([], {"FLASHNEXT_PORT": "x"}, "FLASHNEXT_PORT: expected a port"),
        ([], {"FLASHNEXT_SPILL_DIR": ""}, "FLASHNEXT_SPILL_DIR: expected a folder, found ''"),
        ([], {"FLASHNEXT_DTYPE": "int3"}, "FLASHNEXT_DTYPE: expected one of bfloat16, float32"),
        ([], {"FLASHNEXT_STRICT_FIELDS": "maybe"}, "FLASHNEXT_STRICT_FIELDS: expected true or false"),
        (["--config", "/nowhere.toml"], {}, "/nowhere.toml: cannot be read"),
        (["--host", "0.0.0.0"], {}, "there is no key"),
        (["--api-key", ""], {}, "expected a key"),
        (["--api-key-file", "/nowhere"], {}, "/nowhere: cannot be read"),
        (["--served-model-name", "a\nb"], {}, "--served-model-name: expected UTF-8 without control"),
        ([], {"FLASHNEXT_CORS_ORIGIN": "a,\udcff"}, "FLASHNEXT_CORS_ORIGIN: expected UTF-8 without control"),
        (["--queue", "-1"], {}, "--queue: expected a whole number from 0"),
        (["--spill-dir", ""], {}, "--spill-dir: expected a folder, found ''"),
        (["--temperature", "nan"], {}, "--temperature: expected a number from 0 to 100"),
    ],
)
def test_a_wrong_setting_is_told_by_its_name(
    arguments: list[str], environ: dict[str, str], problem: str
) -> None:
    done = subprocess.run(
        [*SERVE, "--port", "0", *arguments],
        capture_output=True, text=True, timeout=60, env={**os.environ, **environ},
    )  # fmt: skip
    assert done.returncode in (1, 2)
    assert problem in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("prt = 1", "did you mean 'port'?"),
        ("port = [1]", "port: expected a plain value"),
        ("= 1", "not TOML"),
    ],
)
def test_a_wrong_file_is_told_by_its_name(text: str, problem: str, tmp_path: Path) -> None:
    file = tmp_path / "serve.toml"
    file.write_text(text)
    done = subprocess.run([*SERVE, "--config", str(file)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert str(file) in done.stderr and problem in done.stderr


def test_a_server_set_up_by_environment_and_key_file_is_as_they_say(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("# for the tests\nkey-in-a-file\n")
    environ = {"FLASHNEXT_API_KEY_FILE": str(keys), "FLASHNEXT_SERVED_MODEL_NAME": "gpt-4o, other"}
    with (
        server_process("--no-thinking", environ=environ) as server,
        closing(openai.OpenAI(base_url=server.url, api_key="key-in-a-file", max_retries=0)) as client,
    ):
        assert [model.id for model in client.models.list()] == ["tiny-6bit", "gpt-4o", "other", "flashnext"]
        reply = client.chat.completions.create(model="gpt-4o", messages=SUM, temperature=0)
        assert reply.choices[0].message.content == "3 + 4 = 7"
        assert reply.usage is not None and reply.usage.completion_tokens == 8
        assert httpx.get(f"{server.url}/models").status_code == 401
        assert "key-in-a-file" not in server.err


def test_help_groups_every_option_and_tells_its_default() -> None:
    done = subprocess.run([*SERVE, "--help"], capture_output=True, text=True, timeout=60)
    for group in ("model and address", "engine", "access", "limits", "log", "configuration"):
        assert f"\n{group}" in done.stdout
    options = [
        part for part in done.stdout.split("\n  --")[1:] if not part.startswith(("help", "version", "print"))
    ]
    assert len(options) > 25
    assert all("default" in option for option in options), options
