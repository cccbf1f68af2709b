"""Videos against transformers' own processor, live."""

from __future__ import annotations

import io
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from flashnext.media import Limits, Media, MediaError, Rules, VideoPart, VideoRule, prepare
from support.media_files import HALF, moving, video_file

torch = pytest.importorskip("torch", reason="needs the extra `processors` (torch)")
try:
    import torchvision  # noqa: F401
except (ImportError, RuntimeError) as error:  # the latter where it was built for another torch
    pytest.skip(f"needs the extra `processors` (torchvision: {error})", allow_module_level=True)
pytest.importorskip("transformers", reason="needs the extra `processors` (transformers)")
av = pytest.importorskip("av", reason="needs the extra `video` (av)")

from transformers.models.qwen3_vl.processing_qwen3_vl import Qwen3VLProcessor  # noqa: E402
from transformers.models.qwen3_vl.video_processing_qwen3_vl import Qwen3VLVideoProcessor  # noqa: E402

VIDEOS: dict[str, Any] = {
    "H.264": lambda: video_file(moving(75, 90, 120)),
    "H.264 at 29.97": lambda: video_file(moving(61, 66, 98), fps=Fraction(30000, 1001)),
    "VP9": lambda: video_file(moving(60, 72, 100), "libvpx-vp9", "webm"),
    "VP8 at 24": lambda: video_file(moving(60, 72, 100), "libvpx", "webm", fps=24),
    "HEVC": lambda: video_file(moving(20, 128, 128), "libx265"),
    "AV1": lambda: video_file(moving(20, 128, 128), "libsvtav1"),
    "MPEG-4 in AVI": lambda: video_file(moving(40, 100, 80), "mpeg4", "avi", fps=15),
    "Motion JPEG in Matroska": lambda: video_file(
        moving(10, 64, 64), "mjpeg", "matroska", fps=5, pix_fmt="yuvj420p"
    ),
    "two frames": lambda: video_file(moving(2, 96, 96)),
    "three frames": lambda: video_file(moving(3, 96, 96)),
    "five frames a second apart": lambda: video_file(moving(9, 96, 96), fps=1),
    "odd sides": lambda: video_file(moving(30, 33, 17), pix_fmt="yuv444p"),
    "a low side": lambda: video_file(moving(30, 16, 40)),
    "wide": lambda: video_file(moving(8, 360, 1280)),
}


def _decoded(data: bytes) -> tuple[Any, float]:
    with av.open(io.BytesIO(data)) as file:
        stream = file.streams.video[0]
        frames = [frame.to_ndarray(format="rgb24") for frame in file.decode(stream)]
        return np.stack(frames), float(stream.average_rate)


def _processed(frames: Any, fps: float, **more: Any) -> tuple[Any, list[int], list[float]]:
    size = {"shortest_edge": 4_096, "longest_edge": 25_165_824}
    processor = Qwen3VLVideoProcessor(**{"size": size, "cap_pixels_per_frame": False, **HALF, **more})
    got = processor(
        videos=[torch.tensor(frames).permute(0, 3, 1, 2)], do_sample_frames=True, return_metadata=True,
        video_metadata=[{"total_num_frames": len(frames), "fps": fps}], return_tensors="pt",
    )  # fmt: skip
    indices = np.array(got["video_metadata"][0].frames_indices)
    times = Qwen3VLProcessor._calculate_timestamps(None, indices, fps, 2)
    return got["pixel_values_videos"].numpy(), got["video_grid_thw"][0].tolist(), times


def _assert_within_one_level(ours: Media, theirs: Any) -> None:
    levels, found = (np.rint(values * 127.5 + 127.5) for values in (ours.patches(), theirs))
    assert np.abs(levels - found).max() <= 1
    same = levels == found
    assert np.array_equal(ours.patches()[same], theirs[same])


@pytest.mark.parametrize("name", VIDEOS)
def test_a_video_equals_the_processor_up_to_one_level(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SVT_LOG", "0")
    data = VIDEOS[name]()
    ours = prepare(VideoPart(data), Rules(), Limits())
    theirs, grid, times = _processed(*_decoded(data))
    assert list(ours.grid) == grid and list(ours.times_s) == times
    _assert_within_one_level(ours, theirs)


@pytest.mark.parametrize("turns", [1, 2, 3])
def test_a_rotated_video_equals_the_processor_on_upright_frames(turns: int) -> None:
    # A quarter clockwise takes x to y and y to -x.
    matrix = {1: (0, 1, -1, 0), 2: (-1, 0, 0, -1), 3: (0, -1, 1, 0)}[turns]
    a, b, c, d = (n << 16 for n in matrix)
    data = video_file(moving(12, 64, 128), matrix=[a, b, 0, c, d, 0, 0, 0, 1 << 30])
    frames, fps = _decoded(data)
    ours = prepare(VideoPart(data), Rules(), Limits())
    theirs, grid, _ = _processed(np.rot90(frames, -turns, (1, 2)).copy(), fps)
    assert list(ours.grid) == grid
    _assert_within_one_level(ours, theirs)


@pytest.mark.parametrize("most", [40_000, 200_000])
def test_the_pixels_of_a_video_are_shared_out_as_the_processor_does(most: int) -> None:
    frames, fps = moving(90, 96, 160), 10
    data = video_file(frames, fps=fps)
    size = {"shortest_edge": 4_096, "longest_edge": most}
    theirs, grid, _ = _processed(*_decoded(data), size=size)
    ours = prepare(VideoPart(data), Rules(video=VideoRule(max_pixels=most)), Limits())
    assert list(ours.grid) == grid and ours.patches().shape == theirs.shape
    theirs, grid, _ = _processed(*_decoded(data), size=size, cap_pixels_per_frame=True, max_video_tokens=6)
    ours = prepare(VideoPart(data), Rules(video=VideoRule(max_pixels=most, frame_tokens=6)), Limits())
    assert list(ours.grid) == grid and ours.patches().shape == theirs.shape


def test_a_video_of_10000_by_10_is_refused_here_and_there() -> None:
    data = video_file(moving(4, 10, 10000))
    with pytest.raises(ValueError, match="aspect ratio"):
        _processed(*_decoded(data))
    with pytest.raises(MediaError, match="10000 x 10 pixels"):
        prepare(VideoPart(data), Rules(), Limits())
