"""`flashnext clients` points other people's programs at a server; `flashnext completion` helps shells."""

from __future__ import annotations

import argparse
import http.client
import json
import re
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from flashnext.errors import InvalidArgument
from flashnext.server.options import folder
from flashnext.text.messages import cut

SHELLS = ("bash", "fish", "tcsh", "zsh")

TIMEOUT_S = 3.0
"""How long a server is waited for that is asked for its model."""
MAX_ANSWER_BYTES = 1 << 20
"""How much is read of what it says."""

# What no shell and no form of settings reads as anything but itself.
_PLAIN = re.compile(r"[A-Za-z0-9._:/+@%,=-]+")
# What YAML reads as text, but for a few words.
_WORD = re.compile(r"[A-Za-z][A-Za-z0-9._/-]+")
_ROOT = re.compile(r"https?://[A-Za-z0-9._:/%\[\]-]+")


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Goes nowhere else: the key is the server's."""

    def redirect_request(self, *args: object) -> None:
        """Follow nothing; it is an error with the status then."""


_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirect)


@dataclass(frozen=True)
class Server:
    """What a client has to be told.

    Attributes:
        root: Its address, without `/v1`.
        model: Its model's name.
        context: Largest prompt plus reply, in tokens; None where nobody answered.
        longest: Longest reply, in tokens.
        key: Of the server; a word where it needs none, since clients want one.
    """

    root: str
    model: str = "flashnext"
    context: int | None = None
    longest: int | None = None
    key: str = "none"


@dataclass(frozen=True)
class Client:
    """A program that can use the server.

    Attributes:
        route: That it asks.
        about: What it is.
        text: Writes what a person has to do, in comments and lines to copy.
    """

    route: str
    about: str
    text: Callable[[Server], str]


def _yaml(text: str) -> str:
    """Write text for YAML, which reads some words and numbers as something else."""
    plain = _WORD.fullmatch(text) and text.lower() not in ("true", "false", "yes", "no", "on", "off", "null")
    return text if plain else json.dumps(text)


def _aider(s: Server) -> str:
    size = ""
    if s.context is not None:
        settings = {
            f"openai/{s.model}": {
                "max_input_tokens": s.context,
                "max_output_tokens": s.longest,
                "input_cost_per_token": 0,
                "output_cost_per_token": 0,
                "litellm_provider": "openai",
                "mode": "chat",
            }
        }
        size = f"# in .aider.model.metadata.json, where you start it\n{json.dumps(settings, indent=2)}\n"
    return (
        f"{size}export OPENAI_API_BASE={s.root}/v1\nexport OPENAI_API_KEY={s.key}\n"
        f"aider --model openai/{s.model}"
    )


def _claude(s: Server) -> str:
    return (
        f"export ANTHROPIC_BASE_URL={s.root}\nexport ANTHROPIC_AUTH_TOKEN={s.key}\n"
        f"export ANTHROPIC_MODEL={s.model}\nexport ANTHROPIC_SMALL_FAST_MODEL={s.model}\n"
        "export CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1\nclaude"
    )


def _codex(s: Server) -> str:
    window = "" if s.context is None else f"model_context_window = {s.context}\n"
    return (
        f'# in ~/.codex/config.toml\nmodel = "{s.model}"\nmodel_provider = "flashnext"\n{window}\n'
        f'[model_providers.flashnext]\nname = "flashnext"\nbase_url = "{s.root}/v1"\nwire_api = "responses"\n'
        f'env_key = "FLASHNEXT_KEY"\n\n# then\nexport FLASHNEXT_KEY={s.key}\ncodex'
    )


def _curl(s: Server) -> str:
    body = json.dumps({"model": s.model, "messages": [{"role": "user", "content": "Hello"}]})
    return (
        f"curl '{s.root}/v1/chat/completions' \\\n  -H 'content-type: application/json' \\\n"
        f"  -H 'authorization: Bearer {s.key}' \\\n  -d '{body}'"
    )


def _litellm(s: Server) -> str:
    return (
        "# in config.yaml of its proxy\nmodel_list:\n  - model_name: flashnext\n    litellm_params:\n"
        f"      model: openai/{s.model}\n      api_base: {s.root}/v1\n      api_key: {_yaml(s.key)}\n\n"
        "# then\nlitellm --config config.yaml"
    )


def _llm(s: Server) -> str:
    return (
        '# in extra-openai-models.yaml, in the folder that `dirname "$(llm logs path)"` prints\n'
        f"- model_id: flashnext\n  model_name: {_yaml(s.model)}\n  api_base: {s.root}/v1\n"
        f"  api_key_name: flashnext\n\n# then\nllm keys set flashnext --value {s.key}\n"
        "llm -m flashnext 'Hello'"
    )


def _openai(s: Server) -> str:
    return (
        f'from openai import OpenAI\n\nclient = OpenAI(base_url="{s.root}/v1", api_key="{s.key}")\n'
        "reply = client.chat.completions.create(\n"
        f'    model="{s.model}", messages=[{{"role": "user", "content": "Hello"}}]\n)\n'
        "print(reply.choices[0].message.content)"
    )


def _opencode(s: Server) -> str:
    model: dict[str, object] = {"name": s.model}
    if s.context is not None:
        model["limit"] = {"context": s.context, "output": s.longest}
    settings = {
        "$schema": "https://opencode.ai/config.json",
        "provider": {
            "flashnext": {
                "npm": "@ai-sdk/openai-compatible",
                "name": "flashnext",
                "options": {"baseURL": f"{s.root}/v1", "apiKey": s.key},
                "models": {s.model: model},
            }
        },
        "model": f"flashnext/{s.model}",
    }
    return f"# opencode.json\n{json.dumps(settings, indent=2)}"


CLIENTS: dict[str, Client] = {
    "aider": Client("/v1/chat/completions", "aider, pair programming", _aider),
    "claude": Client("/v1/messages", "Claude Code", _claude),
    "codex": Client("/v1/responses", "Codex CLI", _codex),
    "curl": Client("/v1/chat/completions", "any shell", _curl),
    "litellm": Client("/v1/chat/completions", "the proxy of litellm", _litellm),
    "llm": Client("/v1/chat/completions", "llm, a command line for models", _llm),
    "openai": Client("/v1/chat/completions", "the openai package of Python", _openai),
    "opencode": Client("/v1/chat/completions", "opencode", _opencode),
}


def clients(parser: argparse.ArgumentParser) -> Callable[[argparse.Namespace], None]:
    """Show how a program is pointed at a server; nothing is changed."""
    parser.add_argument(
        "name", nargs="?", choices=tuple(CLIENTS), metavar="NAME", help="which (default: list all)"
    )
    parser.add_argument(
        "--url",
        default="http://127.0.0.1:8000",
        help="the server's address; it is asked for its model (default http://127.0.0.1:8000)",
    )
    parser.add_argument("--key", default="none", help="the server's key, where it needs one (default none)")

    def run(args: argparse.Namespace) -> None:
        if args.name is None:
            width = max(map(len, CLIENTS))
            print("\n".join(f"{name:<{width}}  {client.about}" for name, client in CLIENTS.items()))
            return
        client = CLIENTS[args.name]
        server, notes = found(args.url, args.key)
        if client.route not in routes():
            notes.append(f"this version does not serve {client.route} yet, which {client.about} asks")
        print("\n".join([*(f"# {note}" for note in notes), client.text(server)]))

    return run


def routes() -> set[str]:
    """Name the routes that this version serves."""
    from flashnext.server.app import ROUTES

    return {path for _, path, _ in ROUTES}


def found(url: str, key: str) -> tuple[Server, list[str]]:
    """Ask a server for its model; where it does not answer, go by defaults and say so.

    Raises:
        InvalidArgument: The address cannot be one, or the key is wrong.
    """
    root = url.rstrip("/").removesuffix("/v1")
    if not _ROOT.fullmatch(root):
        raise InvalidArgument(f"--url: expected http://HOST:PORT, found {url!r}")
    if not _PLAIN.fullmatch(key):
        raise InvalidArgument("--key: it has characters that would have to be quoted; write it in yourself")
    request = urllib.request.Request(f"{root}/v1/models", headers={"authorization": f"Bearer {key}"})
    try:
        with _OPENER.open(request, timeout=TIMEOUT_S) as response:
            model = json.loads(response.read(MAX_ANSWER_BYTES))["data"][0]
        name, context, longest = model["id"], model.get("context_window"), model.get("max_output_tokens")
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 401:
            raise InvalidArgument(f"{root}: the server wants another key; give it with --key") from None
        return Server(root, key=key), [f"{root} answered with status {error.code}; is it flashnext?"]
    except (OSError, ValueError, LookupError, TypeError, AttributeError, http.client.HTTPException):
        note = f"no server answers at {root}: start one and run this again, for its model and window"
        return Server(root, key=key), [note]
    if not isinstance(name, str) or not _PLAIN.fullmatch(name):
        raise InvalidArgument(
            f"{root}: its model is called {cut(repr(name), 80)}, which would have to be quoted; "
            "start the server with another --name"
        )
    if type(context) is not int or type(longest) is not int:
        return Server(root, name, key=key), [f"{root} does not tell its window; is it flashnext?"]
    return Server(root, name, context, longest, key), []


def completion(parser: argparse.ArgumentParser) -> Callable[[argparse.Namespace], None]:
    """Print what completes the commands in a shell."""
    parser.add_argument("shell", choices=SHELLS, help="which shell")
    parser.add_argument(
        "--of",
        choices=("flashnext", "flashnext-serve"),
        default="flashnext",
        help="which command (default flashnext)",
    )

    def run(args: argparse.Namespace) -> None:
        import shtab

        from flashnext.cli import serve_parser
        from flashnext.commands import parser_of_all

        made = parser_of_all() if args.of == "flashnext" else serve_parser()
        _complete_files(made, shtab.FILE)
        print(shtab.complete(made, shell=args.shell))

    return run


def _complete_files(parser: argparse.ArgumentParser, mark: object) -> None:
    """Have arguments that are paths completed by what is there."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for sub in dict.fromkeys(action.choices.values()):
                _complete_files(sub, mark)
        elif action.type in (Path, folder):
            action.complete = mark  # type: ignore[attr-defined]
