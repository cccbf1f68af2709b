"""Pictures and videos made on the spot, from numbers."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

Pixels = npt.NDArray[np.uint8]

HALF: dict[str, Any] = {"patch_size": 16, "image_mean": [0.5] * 3, "image_std": [0.5] * 3}
"""What transformers' processors are given for the rules that do not depend on the checkpoint."""

CORNERS = (
    (1, 1),
    (1, 200),
    (200, 1),
    (31, 639),
    (32, 32),
    (33, 31),
    (15, 16),
    (16, 17),
    (2900, 16),
    (47, 1100),
)
"""Heights and widths that a rule of sizes may trip over."""


def pixels(rng: np.random.Generator, height: int, width: int, channels: int = 3) -> Pixels:
    """Waves with noise, (height, width, channels): edges, gradients and all levels."""
    y, x = np.mgrid[:height, :width]
    out = np.empty((height, width, channels))
    for c in range(channels):
        a, b, phase = rng.uniform(0.01, 0.8, 3)
        out[..., c] = 127.5 + 150 * np.sin(a * y + phase) * np.cos(b * x)
    out += rng.normal(0, 20, out.shape)
    return np.clip(out, 0, 255).astype(np.uint8)


@dataclass(frozen=True)
class Picture:
    """A picture's file, and the array that it was made from."""

    name: str
    data: bytes
    source: Pixels | npt.NDArray[np.uint16]


def encoded(image: Image.Image, kind: str, **how: Any) -> bytes:
    out = io.BytesIO()
    image.save(out, kind, **how)
    return out.getvalue()


def _palette(a: Pixels) -> Image.Image:
    return Image.fromarray(a).quantize(64)


def _keyed(image: Image.Image) -> dict[str, Any]:
    return {"transparency": int(np.asarray(image).flat[0])}


def _grey16(rng: np.random.Generator, height: int, width: int) -> npt.NDArray[np.uint16]:
    return rng.integers(0, 65536, (height, width)).astype(np.uint16)


_Maker = Callable[[np.random.Generator, int, int], tuple[bytes, npt.NDArray[Any]]]


def _made(mode: str, channels: int, kind: str, **how: Any) -> _Maker:
    def make(rng: np.random.Generator, height: int, width: int) -> tuple[bytes, npt.NDArray[Any]]:
        a = pixels(rng, height, width, channels)
        image = Image.fromarray(a[..., 0] if channels == 1 else a, None if mode != "CMYK" else "CMYK")
        image = image if image.mode == mode else image.convert(mode)
        return encoded(image, kind, **how), a

    return make


def _made_keyed(kind: str) -> _Maker:
    def make(rng: np.random.Generator, height: int, width: int) -> tuple[bytes, npt.NDArray[Any]]:
        a = pixels(rng, height, width)
        image = _palette(a)
        return encoded(image, kind, **_keyed(image)), a

    return make


def _made_palette(kind: str) -> _Maker:
    def make(rng: np.random.Generator, height: int, width: int) -> tuple[bytes, npt.NDArray[Any]]:
        a = pixels(rng, height, width)
        return encoded(_palette(a), kind), a

    return make


def _made_16(kind: str) -> _Maker:
    def make(rng: np.random.Generator, height: int, width: int) -> tuple[bytes, npt.NDArray[Any]]:
        a = _grey16(rng, height, width)
        return encoded(Image.fromarray(a), kind), a

    return make


def _made_turned(kind: str, orientation: int) -> _Maker:
    def make(rng: np.random.Generator, height: int, width: int) -> tuple[bytes, npt.NDArray[Any]]:
        a = pixels(rng, height, width)
        exif = Image.Exif()
        exif[0x0112] = orientation
        return encoded(Image.fromarray(a), kind, exif=exif.tobytes()), a

    return make


def _made_with_alphas(rng: np.random.Generator, height: int, width: int) -> tuple[bytes, npt.NDArray[Any]]:
    """A palette of which each colour has an opacity of its own."""
    a = pixels(rng, height, width)
    return encoded(_palette(a), "PNG", transparency=bytes(range(0, 256, 4))), a


MAKERS: dict[str, _Maker] = {
    "RGB.png": _made("RGB", 3, "PNG"),
    "RGBA.png": _made("RGBA", 4, "PNG"),
    "L.png": _made("L", 1, "PNG"),
    "LA.png": _made("LA", 4, "PNG"),
    "1.png": _made("1", 1, "PNG"),
    "P.png": _made_palette("PNG"),
    "P keyed.png": _made_keyed("PNG"),
    "P alphas.png": _made_with_alphas,
    "I;16.png": _made_16("PNG"),
    "RGB.jpg": _made("RGB", 3, "JPEG", quality=90),
    "progressive.jpg": _made("RGB", 3, "JPEG", progressive=True),
    "L.jpg": _made("L", 1, "JPEG"),
    "CMYK.jpg": _made("CMYK", 4, "JPEG", quality=90),
    "RGB.webp": _made("RGB", 3, "WEBP", quality=80),
    "RGBA.webp": _made("RGBA", 4, "WEBP", lossless=True, exact=True),
    "P.gif": _made_palette("GIF"),
    "P keyed.gif": _made_keyed("GIF"),
    "RGB.bmp": _made("RGB", 3, "BMP"),
    "RGB.tif": _made("RGB", 3, "TIFF", compression="tiff_lzw"),
    "CMYK.tif": _made("CMYK", 4, "TIFF"),
    "I;16.tif": _made_16("TIFF"),
    **{f"turned {i}.jpg": _made_turned("JPEG", i) for i in range(1, 9)},
    **{f"turned {i}.png": _made_turned("PNG", i) for i in (3, 6)},
    "turned 8.webp": _made_turned("WEBP", 8),
}
"""Files of every mode and kind, from a generator, a height and a width."""


def corpus(n: int, seed: int) -> Iterator[Picture]:
    """Yield `n` pictures, all modes and kinds in turn, of sizes from 1 to about 1,000 pixels a side."""
    rng = np.random.default_rng(seed)
    makers = list(MAKERS.items())
    for i in range(n):
        height, width = CORNERS[i // 3] if i % 3 == 0 and i // 3 < len(CORNERS) else _size(rng)
        name, make = makers[i % len(makers)]
        data, source = make(rng, height, width)
        yield Picture(f"{i} {name} {width}x{height}", data, source)


def _size(rng: np.random.Generator) -> tuple[int, int]:
    while True:
        h, w = (int(x) for x in np.exp(rng.uniform(0, np.log(1000), 2)))
        if max(h, w) <= 200 * min(h, w):
            return h, w


def chunk(kind: bytes, data: bytes) -> bytes:
    """One of a PNG's."""
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(
    width: int, height: int, *more: bytes, rows: bytes | None = None, depth: int = 8, colour: int = 2
) -> bytes:
    """A PNG of nothing but a header, given chunks, and rows where they are given."""
    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    body = b"" if rows is None else chunk(b"IDAT", zlib.compress(rows, 9))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + b"".join(more) + body + chunk(b"IEND", b"")


def moving(n: int, height: int, width: int) -> list[Pixels]:
    """Frames that differ in colour from one to the next, with a light corner that tells which way is up."""
    out = []
    for i in range(n):
        frame = np.empty((height, width, 3), np.uint8)
        frame[...] = (20 + 37 * i % 200, 40 + 11 * i % 180, 220 - 23 * i % 200)
        frame[: height // 3, : width // 4] = 250
        out.append(frame)
    return out


def video_file(
    frames: Sequence[Pixels],
    codec: str = "libx264",
    container: str = "mp4",
    fps: Fraction | int = 30,
    at_ms: Sequence[int] | None = None,
    matrix: Sequence[int] | None = None,
    pix_fmt: str = "yuv420p",
    options: dict[str, str] | None = None,
    sound: bool = False,
) -> bytes:
    """Encode frames, at one rate or at given times, with a display matrix and silence or without."""
    import av

    out = io.BytesIO()
    with av.open(out, "w", format=container) as file:
        stream: Any = file.add_stream(codec, rate=fps, options={**_QUICK.get(codec, {}), **(options or {})})
        stream.height, stream.width = frames[0].shape[:2]
        stream.pix_fmt = pix_fmt
        stream.codec_context.thread_count = 1
        base = Fraction(1, 1000) if at_ms is not None else 1 / Fraction(fps)
        stream.codec_context.time_base = stream.time_base = base
        if matrix is not None:
            stream.set_display_matrix(list(matrix))
        silence: Any = file.add_stream("aac", rate=16000) if sound else None
        for i, pixels_of_one in enumerate(frames):
            frame = av.VideoFrame.from_ndarray(pixels_of_one, format="rgb24")
            frame.pts, frame.time_base = at_ms[i] if at_ms is not None else i, base
            file.mux(stream.encode(frame))
        file.mux(stream.encode(None))
        if silence is not None:
            _be_silent(file, silence)
    return out.getvalue()


def _be_silent(file: Any, stream: Any) -> None:
    import av

    frame = av.AudioFrame.from_ndarray(np.zeros((1, 4096), np.float32), format="fltp", layout="mono")
    frame.sample_rate = 16000
    file.mux(stream.encode(frame))
    file.mux(stream.encode(None))


_QUICK = {
    "libx264": {"preset": "ultrafast", "crf": "10"},
    "libx265": {"preset": "ultrafast", "x265-params": "log-level=none"},
    "libvpx": {"deadline": "realtime", "cpu-used": "8"},
    "libvpx-vp9": {"deadline": "realtime", "cpu-used": "8"},
    "libsvtav1": {"preset": "12"},
}


def sound_file() -> bytes:
    """An MP4 of sound alone."""
    import av

    out = io.BytesIO()
    with av.open(out, "w", format="mp4") as file:
        _be_silent(file, file.add_stream("aac", rate=16000))
    return out.getvalue()


NOISE = ("RGB 40x30", "RGB 300x200", "RGB 257x511", "RGB 1300x900", "RGBA 97x61", "L 640x33", "LA 20x20")
"""Pictures of whole numbers alone, which come out the same on every machine: mode, width and height."""


def noise(name: str) -> bytes:
    """One of `NOISE`, as PNG: blocks of 7 pixels, in steps from dark to light."""
    mode, _, size = name.partition(" ")
    width, height = (int(n) for n in size.split("x"))
    rng = np.random.default_rng(sum(name.encode()))
    blocks = rng.integers(0, 256, (-(-height // 7), -(-width // 7), len(mode)))
    steps = np.add.outer(np.arange(height), np.arange(width))[..., None]
    a = (np.repeat(np.repeat(blocks, 7, 0), 7, 1)[:height, :width] + steps) % 256
    return encoded(Image.fromarray(a.astype(np.uint8).squeeze(), mode), "PNG")
