"""The lines of a batch, its output file, and what is asked again, each by itself."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from flashnext.batch.lines import Line, Reading, survey
from flashnext.batch.output import Output, written
from flashnext.batch.work import PATIENCE_S, Answer, answer_lines
from flashnext.errors import FlashnextError, InvalidArgument

READING = Reading(("/v1/chat/completions", "/v1/completions"), "tiny", max_bytes=500)


def lines_of(tmp_path: Path, data: bytes, reading: Reading = READING) -> list[Line]:
    path = tmp_path / "in.jsonl"
    path.write_bytes(data)
    with path.open("rb") as file:
        taken = survey(file, reading.max_bytes).taken
        return list(replace(reading, taken=taken).lines(file))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{", "not JSON"),
        ("[1]", "expected a JSON object, found list"),
        ("{}", "a body with messages or a prompt"),
        ('{"custom_id": 3, "prompt": "x"}', "custom_id: expected text"),
        ('{"custom_id": "", "prompt": "x"}', "custom_id: expected text"),
        ('{"url": "/v1/none", "body": {}}', "url: expected /v1/chat/completions or /v1/completions, found"),
        ('{"url": ["/v1/completions"], "body": {}}', "url: expected"),
        ('{"url": "/v1/completions"}', "body: expected an object, found NoneType"),
        ('{"url": "/v1/completions", "body": "x"}', "body: expected an object, found str"),
        ('{"method": "GET", "url": "/v1/completions", "body": {}}', 'method: expected "POST", found'),
        ('{"prompt": "x", "stream": true}', "stream: a batch has whole replies"),
        ('{"prompt": "x", "prompt": "y"}', "stands twice"),
        ('{"prompt": NaN}', "NaN is not JSON"),
        ("[" * 200 + "]" * 200, "deep"),
        ("\xff", "byte 0 is not UTF-8"),
    ],
)
def test_a_line_that_is_no_request_says_why(text: str, problem: str, tmp_path: Path) -> None:
    data = text.encode("latin-1") if text == "\xff" else text.encode()
    wrong, right = lines_of(tmp_path, data + b'\n{"prompt": "x"}')
    assert wrong.problem is not None and wrong.problem.code == "invalid_line"
    assert wrong.problem.message.startswith("line 1: ") and problem in wrong.problem.message
    assert right.problem is None and right.number == 2


def test_a_line_that_is_too_long_is_told_and_passed_over(tmp_path: Path) -> None:
    long = b'{"prompt": "' + b"a" * (3 << 20) + b'"}'
    first, wrong, last = lines_of(tmp_path, b'{"prompt": "x"}\n' + long + b'\n{"prompt": "y"}\n')
    assert wrong.problem is not None and wrong.problem.code == "line_too_long"
    assert (first.problem, last.problem, last.number) == (None, None, 3)
    _, other, _ = lines_of(tmp_path, b'{"prompt": "x"}\n' + long[:-3] + b'b"}\n{"prompt": "y"}\n')
    assert other.digest != wrong.digest


def test_lines_are_numbered_as_editors_do_and_empty_ones_passed_over(tmp_path: Path) -> None:
    data = b'\xef\xbb\xbf{"prompt": "x"}\r\n\r\n  \n{"messages": []}'
    lines = lines_of(tmp_path, data)
    assert [(line.number, line.custom_id, line.url) for line in lines] == [
        (1, "line-1", "/v1/completions"),
        (4, "line-4", "/v1/chat/completions"),
    ]
    with (tmp_path / "in.jsonl").open("rb") as file:
        assert survey(file).n_lines == 2
    assert lines_of(tmp_path, b'{"prompt": "x"}')[0].body["model"] == "tiny"


def test_a_custom_id_counts_once_and_the_first_line_has_it(tmp_path: Path) -> None:
    line = b'{"custom_id": "a", "prompt": "x"}\n'
    first, second = lines_of(tmp_path, line * 2)
    assert first.problem is None and second.problem is not None
    assert second.problem.code == "duplicate_custom_id"


def test_a_second_line_is_told_which_one_has_its_custom_id_and_whether_that_is_a_request(
    tmp_path: Path,
) -> None:
    right, wrong = b'{"custom_id": "a", "prompt": "x"}\n', b'{"custom_id": "a"}\n'
    for before, words in ((right, "line 2 has"), (wrong, "line 2 is no request and has")):
        lines = lines_of(tmp_path, b"\n" + before + right * 2)
        found = [line.problem.message for line in lines[1:] if line.problem is not None]
        assert found == [f"line {number}: {words} the custom_id 'a'" for number in (3, 4)]


@pytest.mark.parametrize("given", ["line-3", "line\\u002d3", "\\u006cine-3"])
@pytest.mark.parametrize("rest", [', "prompt": "x"', ""], ids=["a request", "no request"])
def test_a_line_without_a_custom_id_never_has_one_that_another_line_gives_itself(
    given: str, rest: str, tmp_path: Path
) -> None:
    plain = '{"prompt": "x"}'
    other = f'{{"custom_id": "{given}"{rest}}}'
    for texts in ([other, "", plain], [plain, other, plain], [plain, plain, plain, other], [other, "", "{"]):
        lines = lines_of(tmp_path, "\n".join(texts).encode())
        ids = {line.number: line.custom_id for line in lines}
        expected = {n: f"line-{n}" for n, text in enumerate(texts, 1) if text}
        assert ids == {**expected, 3: "line-3-2", texts.index(other) + 1: "line-3"}
        assert all(line.problem is None or line.problem.code == "invalid_line" for line in lines)
    texts = [other, '{"custom_id": "line-3-2", "prompt": "x"}', plain]
    assert [line.custom_id for line in lines_of(tmp_path, "\n".join(texts).encode())] == [
        "line-3", "line-3-2", "line-3-3",
    ]  # fmt: skip


def test_an_answer_by_another_name_is_another_one_and_all_else_stays(tmp_path: Path) -> None:
    data = b'{"prompt": "x"}\n' * 3
    before = lines_of(tmp_path, data)
    after = lines_of(tmp_path, data + b'{"custom_id": "line-2", "prompt": "x"}\n')
    assert [a.digest == b.digest for a, b in zip(before, after, strict=False)] == [True, False, True]


def test_a_digest_is_of_the_text_the_seed_and_the_settings(tmp_path: Path) -> None:
    data = b'{"prompt": "x"}\n'
    kinds = [READING, Reading(READING.urls, "tiny", 1), Reading(READING.urls, "tiny", 0, "hot")]
    digests = [lines_of(tmp_path, data, reading)[0].digest for reading in kinds]
    digests.append(lines_of(tmp_path, b'{"prompt": "y"}\n')[0].digest)
    assert len(set(digests)) == 4
    assert lines_of(tmp_path, data.replace(b"\n", b"\r\n"))[0].digest == digests[0]


# --- the output


def line(number: int, digest: str = "0" * 16) -> Line:
    return Line(number, digest, f"line-{number}", "/v1/completions", {"prompt": "x"})


def answer(number: int, status: int = 200, **body: Any) -> dict[str, Any]:
    return written(line(number), status, "req_1", body)


def test_half_a_line_is_cut_off_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    with Output(path) as output:
        for number in (3, 1):
            output.append(line(number), answer(number, text="ü" * number))
    whole = path.read_bytes()
    last = whole.rindex(b"\n", 0, -1) + 1
    for n in range(last, len(whole)):
        path.write_bytes(whole[:n])
        with Output(path) as output:
            assert set(output.done) == {3}
            assert path.read_bytes() == whole[:last]
            output.append(line(1), answer(1, text="ü"))
        assert path.read_bytes() == whole


def test_lines_are_put_in_order_at_the_end_and_the_file_stays_the_same_one(tmp_path: Path) -> None:
    real, link = tmp_path / "real.jsonl", tmp_path / "link.jsonl"
    link.symlink_to(real)
    with Output(link) as output:
        real.chmod(0o640)
        for number in (3, 1, 2):
            output.append(line(number), answer(number))
        output.finish()
        with pytest.raises(InvalidArgument, match="another process"):
            Output(real)
        output.append(line(4), answer(4))
    assert link.is_symlink() and real.stat().st_mode & 0o777 == 0o640
    ids = [json.loads(text)["id"] for text in real.read_text().splitlines()]
    assert ids == [line(number).id for number in (1, 2, 3, 4)]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link.jsonl", "real.jsonl"]


def test_a_file_that_another_process_writes_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    with path.open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(InvalidArgument, match="another process"):
            Output(path)
    Output(path).__exit__(None, None, None)


def test_a_second_answer_and_a_foreign_line_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    text = json.dumps(answer(1)) + "\n"
    for data, problem in (
        (text * 2, "two lines answer line 1"),
        (text + '{"id": 3}\n', "line 2 is not the output"),
        (text + "\0\0\n", "line 2 is not the output"),
        (text.replace("batch_req_1_", "batch_req_0_"), "line 1 is not the output"),
    ):
        path.write_text(data)
        with pytest.raises(InvalidArgument, match=problem):
            Output(path)
        assert path.read_text() == data


# --- asking


class Asked:
    """A route that says what it is told to, and counts what is open."""

    def __init__(self, *answers: Answer) -> None:
        self.answers = list(answers)
        self.bodies: list[Any] = []
        self.open = self.most = 0

    async def __call__(self, url: str, body: bytes) -> Answer:
        self.bodies.append(json.loads(body))
        self.open += 1
        self.most = max(self.most, self.open)
        await asyncio.sleep(0)
        self.open -= 1
        return self.answers.pop(0) if self.answers else Answer(200, "req_1", {"system_fingerprint": "fp"})


def work(path: Path, post: Asked, lines: list[Line], **more: Any) -> dict[int, Any]:
    with Output(path) as output:
        asyncio.run(answer_lines(lines, output, post, **{"ahead": 4, **more}))
    answers = [json.loads(text) for text in path.read_text().splitlines()]
    return {int(one["id"].split("_")[2]): one for one in answers}


def busy(code: str, retry_after_s: float | None = 0.0) -> Answer:
    return Answer(503, "req_1", {"error": {"code": code, "message": f"it is {code}"}}, retry_after_s)


def test_lines_are_read_only_as_there_is_room_for_them(tmp_path: Path) -> None:
    read, open_at = 0, []
    post = Asked()

    def lines() -> Any:
        nonlocal read
        for number in range(1, 101):
            read += 1
            open_at.append(read - len(post.bodies) + post.open)
            yield line(number)

    found = work(tmp_path / "out.jsonl", post, lines())
    assert len(found) == 100 and post.most == 4
    assert max(open_at) <= 4 + 2  # those that are open, one that waits for room, and the one that is read


def test_what_is_only_busy_is_asked_again(tmp_path: Path) -> None:
    post = Asked(busy("memory_short"), busy("queue_full"))
    found = work(tmp_path / "out.jsonl", post, [line(1)])
    assert found[1]["response"]["status_code"] == 200 and len(post.bodies) == 3


class Refusing:
    """A route that refuses for a while, or for ever; a look at its clock takes a second.

    Attributes:
        n: How often each line is refused; None for ever.
        held: Lines that are answered only once another one was refused so often.
    """

    def __init__(self, n: int | None, held: dict[str, int] | None = None) -> None:
        self.n, self.held = n, held or {}
        self.now_s = 0.0
        self.refused: Counter[str] = Counter()
        self.why: list[str] = []

    def clock_s(self) -> float:
        self.now_s += 1.0
        return self.now_s

    async def __call__(self, url: str, body: bytes) -> Answer:
        prompt = json.loads(body)["prompt"]
        if prompt in self.held:
            while sum(self.refused.values()) < self.held[prompt]:
                await asyncio.sleep(0)
            self.n = 0
        elif self.n is None or self.refused[prompt] < self.n:
            self.refused[prompt] += 1
            return busy("memory_short")
        return Answer(200, "req_1", {"system_fingerprint": "fp"})

    def work(self, path: Path, lines: list[Line]) -> list[int]:
        with Output(path) as output:
            asyncio.run(
                answer_lines(
                    lines,
                    output,
                    self,
                    ahead=2,
                    waits=self.why.append,
                    clock_s=self.clock_s,
                )
            )
        answers = [json.loads(text) for text in path.read_text().splitlines()]
        return [one["response"]["status_code"] for one in answers]


def prompting(*prompts: str) -> list[Line]:
    return [replace(line(i), body={"prompt": prompt}) for i, prompt in enumerate(prompts, 1)]


@pytest.mark.timeout(60)
def test_a_batch_whose_lines_are_all_refused_for_ever_says_why_and_ends(tmp_path: Path) -> None:
    route = Refusing(None)
    assert route.work(tmp_path / "out.jsonl", prompting("a", "b", "c")) == [503] * 3
    assert route.why == ["it is memory_short"]
    assert route.now_s >= PATIENCE_S and min(route.refused.values()) > 1


def test_lines_that_are_refused_for_less_than_that_are_answered(tmp_path: Path) -> None:
    route = Refusing(10)
    assert route.work(tmp_path / "out.jsonl", prompting("a", "b")) == [200] * 2
    assert route.why == ["it is memory_short"]


def test_a_line_is_asked_again_for_as_long_as_another_one_is_being_answered(tmp_path: Path) -> None:
    route = Refusing(None, {"long": 10 * int(PATIENCE_S)})
    assert route.work(tmp_path / "out.jsonl", prompting("long", "a")) == [200] * 2
    assert route.why == [] and route.now_s > PATIENCE_S


def test_an_error_that_is_the_requests_own_is_its_answer(tmp_path: Path) -> None:
    found = work(tmp_path / "out.jsonl", Asked(busy("out_of_memory", None)), [line(1), line(2)])
    assert found[1]["response"]["body"]["error"]["code"] == "out_of_memory"
    assert found[2]["response"]["status_code"] == 200


@pytest.mark.parametrize("code", ["engine_failed", "shutting_down"])
def test_an_engine_that_died_ends_the_batch_and_is_nobodys_answer(code: str, tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    good = Answer(200, "req_1", {})
    with pytest.raises(FlashnextError, match=f"it is {code}"):
        work(path, Asked(good, busy(code, None)), [line(n) for n in range(1, 9)], ahead=1)
    assert [json.loads(text)["id"] for text in path.read_text().splitlines()] == [line(1).id]


def test_a_full_disk_ends_the_batch_and_what_was_written_counts(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    with Output(path) as output:
        output.append(line(1), answer(1))
        os.dup2(os.open("/dev/full", os.O_WRONLY), output._fd)
        with pytest.raises(OSError, match="No space"):
            output.append(line(2), answer(2))
    with Output(path) as output:
        assert set(output.done) == {1}
