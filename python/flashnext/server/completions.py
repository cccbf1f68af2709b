"""POST /v1/completions."""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from flashnext.engine.request import AsyncRequest
from flashnext.engine.sampling import Sampling
from flashnext.server.body import read_body
from flashnext.server.completion_request import MAX_SCORES, CompletionRequest, Prompt
from flashnext.server.completion_response import Choice, CompletionResponse, Echo
from flashnext.server.fields import told_as
from flashnext.server.logprobs import TextLogprobs
from flashnext.server.service import Service
from flashnext.text.messages import InvalidField


async def completions(service: Service, http: Request) -> Response:
    """Continue texts, each with one reply or more."""

    def read(body: dict[str, Any]) -> tuple[CompletionRequest, Sampling, list[Prompt]]:
        asked = CompletionRequest.read(body, service.unknown)
        service.require_model(asked.model)
        sampling = asked.sampling(service.settings.defaults, service.engine.context)
        return asked, sampling, asked.prompts()

    body, (asked, sampling, prompts) = await read_body(http, service.settings, read)
    engine = service.engine
    n = len(prompts) * asked.n
    async with service.begin(http, body, n, "n" if len(prompts) == 1 else "prompt") as running:
        choices: list[Choice] = []
        n_scores = 0
        for number, prompt in enumerate(prompts):
            field = f"prompt[{number}]" if asked.has_list else "prompt"
            requests: list[AsyncRequest] = []
            with told_as(prompt=field):
                if asked.max_tokens == 0 and not asked.scores_prompt:
                    ids = await asyncio.to_thread(engine.check_prompt, prompt)
                else:
                    requests = await service.choices(await engine.read_async(prompt), sampling, asked.n)
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
        return await running.respond(answer, stream=asked.stream)
