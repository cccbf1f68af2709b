"""Files that are broken, lie or are something else: a clear sentence, in bounded memory and time."""

from __future__ import annotations

import importlib.util
import io
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
from flashnext.media import (
    FramesPart,
    ImagePart,
    Limits,
    MediaError,
    Part,
    Preprocessor,
    Rules,
    VideoPart,
    bounded,
    prepare,
)
from flashnext.media.errors import Unwanted
from flashnext.media.video import read_video
from PIL import Image
from support.broken_media import Broken, broken_images, broken_videos, in_pieces
from support.media_files import MAKERS, chunk, encoded, moving, png, video_file

HAS_AV = importlib.util.find_spec("av") is not None
IMAGES = broken_images()
VIDEOS = broken_videos() if HAS_AV else {}
needs_av = pytest.mark.skipif(not HAS_AV, reason="needs the extra `video` (av)")

MOST_GROWTH = 256 * 2**20
"""Bytes that all of them together may add to a process: some claim terabytes, some hold bombs of 256 MiB."""


def _refused(case: Broken) -> str:
    with pytest.raises(MediaError) as caught:
        prepare(case.part, Rules(), case.limits)
    return str(caught.value)


def test_there_are_at_least_40_of_them() -> None:
    assert len(IMAGES) >= 40


@pytest.mark.timeout(120)
@pytest.mark.parametrize("case", IMAGES.values(), ids=IMAGES)
def test_a_broken_image_is_refused_in_one_sentence(case: Broken) -> None:
    told = _refused(case)
    assert case.words in told and "\n" not in told and len(told) < 400


@needs_av
@pytest.mark.timeout(120)
@pytest.mark.parametrize("case", VIDEOS.values(), ids=VIDEOS)
def test_a_broken_video_is_refused_in_one_sentence(case: Broken) -> None:
    told = _refused(case)
    assert case.words in told and "\n" not in told and len(told) < 400


CHILD = """
import re, resource, sys
from pathlib import Path
from support.broken_media import broken_images, broken_videos
from flashnext.media import ImagePart, Limits, MediaError, Rules, prepare
from support.media_files import encoded, png
from PIL import Image

def taken():
    status = Path("/proc/self/status")
    if status.exists():  # since this program began; getrusage knows what its parent once had
        return int(re.search(r"VmHWM:\\s*(\\d+) kB", status.read_text())[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

cases = list(broken_images().values()) + (list(broken_videos().values()) if sys.argv[1] == "True" else [])
prepare(ImagePart(encoded(Image.new("RGB", (64, 64)), "PNG")), Rules(), Limits())
before = taken()
for case in cases:
    try:
        prepare(case.part, Rules(), case.limits)
    except MediaError:
        continue
    raise AssertionError(case.words)
print(taken() - before)
"""


@pytest.mark.timeout(300)
def test_broken_files_take_no_memory_to_speak_of() -> None:
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(HAS_AV)], capture_output=True, text=True,
        env={"PYTHONPATH": ":".join([str(Path(__file__).parents[1]), *sys.path])},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) <= MOST_GROWTH


@pytest.mark.parametrize("kind", in_pieces(1))
def test_a_picture_of_too_many_parts_is_left_after_so_many_steps(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounded, "MOST_READS", 2000)
    with pytest.raises(MediaError, match="too many parts, which take more than 2000 steps"):
        prepare(ImagePart(in_pieces(2001)[kind]), Rules(), Limits())
    if kind != "BMP":  # whose rows then end early
        assert prepare(ImagePart(in_pieces(300)[kind]), Rules(), Limits()).n_tokens >= 64


def test_usual_pictures_take_few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded, "MOST_READS", 2000)
    for kind, make in MAKERS.items():
        data, _ = make(np.random.default_rng(1), 60, 80)
        assert prepare(ImagePart(data), Rules(), Limits()).n_tokens >= 64, kind


def test_rows_behind_a_pictures_last_are_not_unpacked() -> None:
    rows = (b"\0" + bytes(3 * 8)) * 8
    more, right = png(8, 8, rows=rows + bytes(64 * 2**20)), png(8, 8, rows=rows)
    assert prepare(ImagePart(more), Rules(), Limits()).key == prepare(ImagePart(right), Rules(), Limits()).key


@pytest.mark.parametrize("size", [(8, 8), (1, 1), (5, 3), (9, 17)])
@pytest.mark.parametrize("missing", [0, 1])
def test_an_interlaced_png_needs_the_rows_of_all_its_passes(size: tuple[int, int], missing: int) -> None:
    width, height = size
    rows = bytearray()
    for x, y, dx, dy in (
        (0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2),
    ):  # fmt: skip
        columns = len(range(x, width, dx))
        if columns:
            rows += (b"\0" + b"\x7f" * columns) * len(range(y, height, dy))
    data = png(width, height, depth=8, colour=0)
    header = data[16:28] + b"\1"
    body = chunk(b"IDAT", zlib.compress(bytes(rows[: len(rows) - missing])))
    whole = data[:8] + chunk(b"IHDR", header) + body + chunk(b"IEND", b"")
    if missing:
        with pytest.raises(MediaError, match="rows end before its height"):
            prepare(ImagePart(whole), Rules(), Limits())
    else:
        assert (prepare(ImagePart(whole), Rules(), Limits()).levels == 127).all()


def test_the_error_of_a_request_names_the_first_part_that_is_wrong() -> None:
    good = ImagePart(encoded(Image.new("RGB", (40, 40)), "PNG"))
    pool = Preprocessor(Rules(), Limits())
    with pytest.raises(MediaError, match=r"^media part 2: the PNG cannot be decoded: ") as caught:
        pool.prepare([good, good, ImagePart(good.data[:60]), ImagePart(b"")])
    assert caught.value.part == 2 and caught.value.problem.startswith("the PNG")
    assert pool.prepare([good, good])[0].n_tokens == 64  # and the next request is served
    pool.close()


def test_without_its_package_a_video_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "av", None)
    monkeypatch.delitem(sys.modules, "flashnext.media.video_file", raising=False)
    with pytest.raises(MediaError, match=r"extra `video`: pip install 'flashnext\[video\]'"):
        read_video(b"\0\0\0\x14ftypisom\0\0\0\0isom", Rules().video, Limits())


@needs_av
@pytest.mark.parametrize("container", ["webm", "avi", "matroska"])
def test_of_a_video_that_is_cut_off_what_is_there_is_seen(container: str) -> None:
    codec = "libvpx" if container == "webm" else "mpeg4"
    data = video_file(moving(60, 64, 96), codec, container, fps=10)
    whole = prepare(VideoPart(data), Rules(), Limits())
    half = prepare(VideoPart(data[: len(data) // 2]), Rules(), Limits())
    assert whole.grid == (6, 4, 6) and 1 <= half.grid[0] < 6 and half.grid[1:] == (4, 6)
    assert 0 < half.times_s[-1] < whole.times_s[-1]


def _grown(small: bytes, large: bytes) -> bytes:
    """A file that says that its frames are like those of one, and goes on with those of another."""
    import av

    out = io.BytesIO()
    with av.open(out, "w", format="webm") as file, av.open(io.BytesIO(small), "r") as first:
        stream = file.add_stream_from_template(first.streams.video[0])
        at = 0
        for data in (small, large):
            with av.open(io.BytesIO(data), "r") as source:
                for packet in source.demux(video=0):
                    if packet.size:
                        packet.pts = packet.dts = at
                        packet.stream = stream
                        file.mux(packet)
                        at += 100
    return out.getvalue()


@needs_av
def test_frames_that_grow_behind_the_header_count_as_what_they_are() -> None:
    small, large = (video_file(moving(6, side, side), "libvpx", "webm") for side in (32, 320))
    grown = _grown(small, large)
    served = prepare(VideoPart(grown), Rules(), Limits(video_work=6 * 32**2 + 6 * 320**2))
    assert served.n_tokens > 0
    with pytest.raises(MediaError, match=r"header lies: 12 of its frames have 620544 pixels"):
        prepare(VideoPart(grown), Rules(), Limits(video_work=6 * 32**2 + 6 * 320**2 - 1))


@needs_av
def test_a_video_that_nobody_waits_for_is_left_between_its_frames() -> None:
    frame = encoded(Image.new("RGB", (32, 32)), "PNG")
    for part in (VideoPart(video_file(moving(9, 32, 32))), FramesPart((frame,) * 9, 2.0)):
        asked = [True] * 4

        def wanted(left: list[bool] = asked) -> bool:
            return bool(left and left.pop())

        with pytest.raises(Unwanted):
            prepare(part, Rules(), Limits(), wanted)
        assert not asked


def _changed(rng: np.random.Generator, data: bytes) -> bytes:
    """The same with some bytes set, and some left out, most of them near the beginning."""
    out = bytearray(data)
    for _ in range(int(rng.integers(1, 6))):
        at = int(rng.integers(min(len(out), 200 if rng.random() < 0.5 else len(out))))
        if rng.random() < 0.25:
            del out[at : at + int(rng.integers(1, 50))]
        else:
            out[at : at + 4] = (b"\xff" * 4, bytes(4), rng.bytes(4), rng.bytes(1))[int(rng.integers(4))]
    return bytes(out)


def _is_served_or_refused(part: Part) -> None:
    try:
        prepare(part, Rules(), Limits())
    except MediaError as error:
        assert "\n" not in str(error)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", MAKERS)
def test_an_image_with_changed_bytes_is_served_or_refused(kind: str) -> None:
    rng = np.random.default_rng(sum(kind.encode()))  # by the name in the test's id
    data, _ = MAKERS[kind](rng, 40, 52)
    for _ in range(12):
        _is_served_or_refused(ImagePart(_changed(rng, data)))


@needs_av
@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", ["libx264 mp4", "libvpx webm", "mpeg4 avi", "libx265 mov"])
def test_a_video_with_changed_bytes_is_served_or_refused(kind: str) -> None:
    rng = np.random.default_rng(sum(kind.encode()))
    codec, container = kind.split()
    data = video_file(moving(8, 48, 64), codec, container, fps=4)
    for _ in range(25):
        _is_served_or_refused(VideoPart(_changed(rng, data)))
