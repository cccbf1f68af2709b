"""POST /v1/completions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from flashnext.engine.request import AsyncRequest
from flashnext.server.body import read_object
from flashnext.server.completion_request import MAX_SCORES, CompletionRequest, Prompt
from flashnext.server.completion_response import Choice, CompletionResponse, Echo
from flashnext.server.logprobs import TextLogprobs
from flashnext.server.service import Service
from flashnext.text.messages import InvalidField


async def completions(service: Service, http: Request) -> Response:
    """Continue texts, each with one reply or more."""
    try:
        body = await read_object(http, service.settings.max_body_bytes)
    except ClientDisconnect:
        return Response(status_code=499)
    asked = CompletionRequest.read(body, service.unknown)
    service.require_model(asked.model)
    engine = service.engine
    sampling = asked.sampling(service.settings.defaults, engine.context)
    prompts = asked.prompts()
    running = service.begin(http, body, len(prompts) * asked.n, "n" if len(prompts) == 1 else "prompt")
    try:
        choices: list[Choice] = []
        n_scores = 0
        for number, prompt in enumerate(prompts):
            field = f"prompt[{number}]" if asked.has_list else "prompt"

            async def first(seed: int | None, prompt: Prompt = prompt) -> AsyncRequest:
                return await engine.generate_async(prompt, sampling=replace(sampling, seed=seed))

            requests: list[AsyncRequest] = []
            with _told_as(field):
                if asked.max_tokens == 0 and not asked.scores_prompt:
                    ids = engine.check_prompt(prompt)
                else:
                    requests = await service.choices(first, asked.n, sampling.seed)
                    running.requests += requests
                    ids = requests[0].prompt_ids
            echo = None
            if asked.echo:
                text = prompt if isinstance(prompt, str) else engine.tokenizer.decode(ids)
                echo = Echo(text, asked.scores_prompt)
                n_scores += asked.n * len(ids) * (1 + (asked.logprobs or 0)) if asked.scores_prompt else 0
                if n_scores > MAX_SCORES:
                    raise InvalidField(
                        field,
                        f"echo with logprobs would tell {n_scores} log-probabilities, at most {MAX_SCORES} "
                        "are told at once; send fewer tokens or prompts, or ask for fewer logprobs",
                    )
            for i in range(asked.n):
                logprobs = None
                if asked.logprobs is not None:
                    logprobs = TextLogprobs(engine.tokenizer, asked.logprobs)
                seed = None if asked.max_tokens == 0 else requests[i].seed
                choices.append(Choice(number, ids, seed, echo, logprobs))
        answer = CompletionResponse(
            id=f"cmpl-{service.new_id()}",
            model=service.name,
            created=int(service.now()),
            fingerprint=service.fingerprint,
            tokenizer=engine.tokenizer,
            choices=choices,
            tell_ids=asked.return_token_ids,
            end_usage=asked.stream_usage,
            each_usage=asked.stream_options.continuous_usage_stats,
        )
        return await running.respond(
            http, answer, stream=asked.stream, keepalive_s=service.settings.keepalive_s
        )
    except BaseException:
        running.end()
        raise


@contextmanager
def _told_as(field: str) -> Iterator[None]:
    """Name the place of a prompt among others in what is wrong with it."""
    try:
        yield
    except InvalidField as error:
        if not error.field.startswith("prompt"):
            raise
        raise type(error)(field + error.field.removeprefix("prompt"), error.problem) from None
