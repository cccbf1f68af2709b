"""Pictures and videos that are broken, lie, or are something else, and what is said of them."""

from __future__ import annotations

import gzip
import struct
import zlib
from dataclasses import dataclass, field

import numpy as np
from flashnext.media import FramesPart, ImagePart, Limits, Part, VideoPart
from PIL import Image

from support.media_files import chunk, encoded, moving, png, sound_file, video_file


@dataclass(frozen=True)
class Broken:
    """A part that has to be refused, and words of the sentence that refuses it."""

    part: Part
    words: str
    limits: Limits = field(default_factory=Limits)


def _grey(height: int = 40, width: int = 60) -> Image.Image:
    return Image.fromarray(np.random.default_rng(3).integers(0, 256, (height, width, 3)).astype(np.uint8))


def _patched(data: bytes, at: int, new: bytes) -> bytes:
    return data[:at] + new + data[at + len(new) :]


def _jpeg(**how: object) -> bytes:
    return encoded(_grey(), "JPEG", **how)


def _sof(jpeg: bytes, height: int, width: int, kind: bytes = b"\xff\xc0") -> bytes:
    return _patched(jpeg, jpeg.index(kind) + 5, struct.pack(">HH", height, width))


def _scans(jpeg: bytes, n: int) -> bytes:
    """Repeat a progressive JPEG's last scan."""
    at = jpeg.rindex(b"\xff\xda")
    return jpeg[:at] + jpeg[at:-2] * n + jpeg[-2:]


def _bomb(mib: int) -> bytes:
    """Zeros that take a thousandth of what they become."""
    pack = zlib.compressobj(1)
    return b"".join(pack.compress(bytes(2**20)) for _ in range(mib)) + pack.flush()


def _webp(kind: bytes, payload: bytes) -> bytes:
    body = b"WEBP" + kind + struct.pack("<I", len(payload)) + payload
    return b"RIFF" + struct.pack("<I", len(body)) + body


def _tiff(width: int, height: int, next_ifd: int = 0) -> bytes:
    tags = [(256, width), (257, height), (258, 8), (259, 1), (262, 1), (273, 8), (278, height), (279, 100)]
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags)
    return b"II*\0" + struct.pack("<IH", 8, len(tags)) + entries + struct.pack("<I", next_ifd)


def broken_images() -> dict[str, Broken]:
    """Make all of them, by name."""
    whole, jpeg, gif = encoded(_grey(), "PNG"), _jpeg(), encoded(_grey().quantize(64), "GIF")
    webp, bmp, tif = (encoded(_grey(), kind) for kind in ("WEBP", "BMP", "TIFF"))
    rows = bytes(1 + 3 * 8) * 8
    bomb = _bomb(256)
    exif = b"\xff\xe1" + struct.pack(">H", 10) + b"Exif\0\0II"

    def bombed(kind: bytes, head: bytes) -> bytes:
        return png(8, 8, chunk(kind, head + bomb), rows=rows)

    files: dict[str, tuple[bytes, str]] = {
        "nothing": (b"", "no bytes"),
        "a text named .png": (b"this is no picture at all", "none of PNG, JPEG"),
        "a page": (b"<!doctype html><html></html>", "none of PNG"),
        "SVG": (b'<svg xmlns="http://www.w3.org/2000/svg"/>', "none of PNG"),
        "PDF": (b"%PDF-1.7\n", "none of PNG"),
        "gzip": (gzip.compress(whole), "none of PNG"),
        "PPM": (b"P6 1 1 255 abc", "none of PNG"),
        "RIFF that is sound": (b"RIFF\x24\0\0\0WAVEfmt ", "none of PNG"),
        "PNG signature": (whole[:8], "PNG cannot be read"),
        "PNG cut in its header": (whole[:20], "PNG cannot be read"),
        "PNG cut in its rows": (whole[: len(whole) // 2], "PNG cannot be decoded"),
        "PNG without rows": (png(8, 8), "PNG cannot be"),
        "PNG with two rows of eight": (png(8, 8, rows=rows[:50]), "rows end before its height"),
        "PNG with a wrong sum": (_patched(whole, 29, b"\0\0\0\0"), "PNG cannot be read"),
        "PNG of 100000 x 100000": (png(100000, 100000), "100000 x 100000"),
        "PNG of 2^31 - 1 squared": (png(2**31 - 1, 2**31 - 1), "pixels"),
        "PNG of no width": (png(0, 8, rows=rows), "no width, no height"),
        "PNG of no height": (png(8, 0, rows=rows), "no width, no height"),
        "PNG of colour type 7": (png(8, 8, rows=rows, colour=7), "PNG cannot be"),
        "PNG of 3 bits": (png(8, 8, rows=rows, depth=3), "PNG cannot be"),
        "PNG with a bomb of a profile": (bombed(b"iCCP", b"a\0\0"), "PNG cannot be read: Decompressed"),
        "PNG with a bomb of a text": (bombed(b"zTXt", b"a\0\0"), "PNG cannot be read: Decompressed"),
        "PNG with a bomb of a wide text": (
            bombed(b"iTXt", b"a\0\1\0\0\0"), "PNG cannot be read: Decompressed",
        ),
        "JPEG start": (jpeg[:3], "JPEG cannot be read"),
        "JPEG cut in its header": (jpeg[:100], "JPEG cannot be read"),
        "JPEG cut in its rows": (jpeg[: len(jpeg) * 2 // 3], "JPEG cannot be decoded"),
        "JPEG of 65500 x 65500": (_sof(jpeg, 65500, 65500), "65500 x 65500"),
        "JPEG of no height": (_sof(jpeg, 0, 60), "JPEG"),
        "JPEG of 5,000 scans": (_scans(_jpeg(progressive=True), 5000), "scans"),
        "JPEG of 4096 x 4096 in 200 scans": (
            _sof(_scans(_jpeg(progressive=True), 200), 4096, 4096, b"\xff\xc2"), "pixels in all; at most",
        ),
        "JPEG of 65 EXIF parts": (jpeg[:2] + exif * 65 + jpeg[2:], "EXIF in 65 parts; at most 64"),
        "JPEG that goes on as text": (jpeg[:200] + b"text" * 100, "JPEG cannot be"),
        "GIF of 65535 x 65535": (_patched(gif, 6, b"\xff\xff\xff\xff"), "65535 x 65535"),
        "GIF frame of 65535 x 65535": (
            _patched(gif, gif.index(b",\0\0\0\0") + 5, b"\xff\xff\xff\xff"), "GIF",
        ),
        "GIF of nothing": (_patched(gif, 6, b"\0\0\0\0")[:13], "GIF"),
        "GIF without a frame": (gif[: gif.index(b",\0\0\0\0")] + b";", "GIF cannot be"),
        "GIF cut off": (gif[: len(gif) // 2], "GIF cannot be decoded"),
        "WebP head": (webp[:12], "WebP cannot be read"),
        "WebP cut off": (webp[: len(webp) // 2], "WebP cannot be"),
        "WebP canvas of 2^24 squared": (_webp(b"VP8X", b"\0\0\0\0" + b"\xff" * 6), "16777216 x 16777216"),
        "WebP of 16384 x 16384": (_webp(b"VP8L", b"\x2f" + b"\xff" * 4 + bytes(10)), "16384 x 16384"),
        "WebP of an unknown kind": (_webp(b"VP9 ", bytes(20)), "WebP cannot be read"),
        "BMP of 2^30 squared": (_patched(bmp, 18, struct.pack("<ii", 2**30, 2**30)), "pixels"),
        "BMP of a negative width": (_patched(bmp, 18, struct.pack("<i", -60)), "BMP"),
        "BMP cut off": (bmp[:200], "BMP cannot be decoded"),
        "TIFF without a list": (tif[:4] + b"\xff\xff\xff\x7f" + tif[8:], "TIFF cannot be"),
        "TIFF of 10^9 squared": (_tiff(10**9, 10**9), "pixels"),
        "TIFF without what it lists": (_tiff(100, 100), "TIFF cannot be"),
        "TIFF of tags that are larger than it": (
            b"II*\0" + struct.pack("<IH", 8, 400)
            + b"".join(struct.pack("<HHII", 1000 + i, 1, 2**31, 8) for i in range(400)) + bytes(4),
            "TIFF cannot be read",
        ),
        "TIFF of float numbers": (encoded(Image.new("F", (40, 40), 0.5), "TIFF"), "32-bit"),
        "a video": (lying_mp4(), "none of PNG"),
        "1 x 201": (png(1, 201, rows=bytes(4) * 201), "at most 200 times"),
    }  # fmt: skip
    parts = {name: Broken(ImagePart(data), words) for name, (data, words) in files.items()}
    parts["too many bytes"] = Broken(
        ImagePart(png(8, 8, rows=rows) + bytes(20_000)), "20000 are read", Limits(image_bytes=20_000)
    )
    frame = encoded(_grey(), "PNG")
    parts["no frames"] = Broken(FramesPart((), 2.0), "1 to 768")
    parts["too many frames"] = Broken(FramesPart((frame,) * 769, 2.0), "1 to 768 of them, found 769")
    parts["a frame that is broken"] = Broken(FramesPart((frame, frame[:200]), 2.0), "frame 1: the PNG")
    parts["a frame of another size"] = Broken(
        FramesPart((frame, encoded(_grey(60, 40), "PNG")), 2.0),
        "frame 1: it is 40 x 60, where frame 0 is 60 x 40",
    )
    parts["frames without a rate"] = Broken(FramesPart((frame,), 0.0), "fps must be")
    parts["frames at no number"] = Broken(FramesPart((frame,), float("nan")), "fps must be")
    return parts


def in_pieces(n: int) -> dict[str, bytes]:
    """Make pictures of so many parts that say nothing, each of which a decoder looks at by itself."""
    rows, start, bmp_head = (
        bytes(1 + 3 * 8) * 8,
        encoded(_grey().quantize(64), "GIF"),
        struct.Struct("<IiiHHIIiiII"),
    )
    at = start.index(b",\0\0\0\0")
    colours = bytes(range(256)) * 4
    head = b"BM" + struct.pack("<IHHI", 1078 + 2 * n, 0, 0, 1078)
    head += bmp_head.pack(40, n, 200, 1, 8, 1, 0, 0, 0, 256, 0) + colours
    jpeg = _jpeg()
    return {
        "PNG": png(8, 8, chunk(b"teSt", b"") * n, rows=rows),
        "PNG of texts": png(8, 8, chunk(b"tEXt", b"a\0b") * n, rows=rows),
        "PNG of empty rows": png(8, 8, chunk(b"IDAT", b"") * n, rows=rows),
        "JPEG": jpeg[:20] + b"\0" * n + jpeg[20:],
        "JPEG of comments": jpeg[:2] + b"\xff\xfe\0\3a" * n + jpeg[2:],
        "GIF": start[:at] + b"!\xfe\1a\0" * n + start[at:],
        "BMP": head + b"\1\7" * n,
    }


def _box(kind: bytes, *inside: bytes) -> bytes:
    body = b"".join(inside)
    return struct.pack(">I", 8 + len(body)) + kind + body


def lying_mp4(
    n: int = 2,
    size: int = 600,
    width: int = 64,
    height: int = 64,
    codec: bytes = b"jpeg",
    ticks: int = 1,
    handler: bytes = b"vide",
    wrapper: bytes | None = None,
    a_chunk: int = 1,
) -> bytes:
    """An MP4 that says of `n` frames of `size` bytes that every `a_chunk` of them lie at the same place.

    Args:
        n: Frames that its header declares.
        size: Bytes of each.
        width: Of its frames, as it says.
        height: The same.
        codec: What it says that they are coded as.
        ticks: How long each is shown, in tenths of a second.
        handler: What it says that its track is of.
        wrapper: A box around the track, where it does not belong.
        a_chunk: Frames that lie one behind the other.
    """
    head = _box(b"ftyp", b"isom\0\0\0\1isom") + _box(b"mdat", bytes(max(size, 1)))
    entry = bytes(6) + struct.pack(">H", 1) + bytes(16) + struct.pack(">HH", width, height)
    entry += struct.pack(">IIIH", 0x480000, 0x480000, 0, 1) + bytes(32) + struct.pack(">Hh", 24, -1)
    zero = bytes(4)
    table = _box(
        b"stbl",
        _box(b"stsd", zero, struct.pack(">I", 1), _box(codec, entry)),
        _box(b"stts", zero, struct.pack(">III", 1, n, ticks)),
        _box(b"stsc", zero, struct.pack(">IIII", 1, 1, a_chunk, 1)),
        _box(b"stsz", zero, struct.pack(">II", size, n)),
        _box(b"stco", zero, struct.pack(">I", -(-n // a_chunk)), struct.pack(">I", 32) * -(-n // a_chunk)),
    )
    unit = struct.pack(">9I", 0x10000, 0, 0, 0, 0x10000, 0, 0, 0, 0x40000000)
    track = _box(
        b"trak",
        _box(b"tkhd", b"\0\0\0\7", bytes(8), struct.pack(">II", 1, 0), struct.pack(">I", n), bytes(16), unit,
             struct.pack(">II", width << 16 & 0xFFFFFFFF, height << 16 & 0xFFFFFFFF)),
        _box(
            b"mdia",
            _box(b"mdhd", zero, bytes(8), struct.pack(">III", 10, n * ticks & 0xFFFFFFFF, 0)),
            _box(b"hdlr", zero, zero, handler, bytes(13)),
            _box(b"minf", _box(b"vmhd", b"\0\0\0\1", bytes(8)),
                 _box(b"dinf", _box(b"dref", zero, struct.pack(">I", 1), _box(b"url ", b"\0\0\0\1"))), table),
        ),
    )  # fmt: skip
    track = track if wrapper is None else _box(wrapper, track)
    return head + _box(b"moov", _box(b"mvhd", zero, bytes(8), struct.pack(">II", 10, n), bytes(80)), track)


def _fragments(n: int) -> bytes:
    """An MP4 whose one fragment says that it has `n` frames, without a word on any of them."""
    zero = bytes(4)
    run = _box(b"trun", zero, struct.pack(">I", n))
    return lying_mp4() + _box(b"moof", _box(b"traf", _box(b"tfhd", zero, struct.pack(">I", 1)), run))


def broken_videos() -> dict[str, Broken]:
    """Make all of them, by name."""
    mp4 = video_file(moving(40, 64, 96))
    webm = video_file(moving(40, 64, 96), "libvpx", "webm")
    avi = video_file(moving(10, 64, 96), "mpeg4", "avi")
    mdat = mp4.index(b"mdat") + 4
    picture = encoded(_grey(), "PNG")
    packed = zlib.compress(bytes(10**6))
    cmov = _box(b"cmov", _box(b"dcom", b"zlib"), _box(b"cmvd", b"\xff\xff\xff\xff", packed))
    zeros = bytes(mp4.index(b"moov") - 4 - mdat)
    many = 2**27
    files: dict[str, tuple[bytes, str]] = {
        "nothing": (b"", "no bytes"),
        "a text": (b"this is no film", "none of MP4"),
        "a picture": (picture, "none of MP4"),
        "an animated GIF": (encoded(_grey().quantize(8), "GIF"), "none of MP4"),
        "a playlist": (b"#EXTM3U\n#EXTINF:1,\nfile:///etc/hostname\n", "none of MP4"),
        "a list of files": (b"ffconcat version 1.0\nfile /etc/hostname\n", "none of MP4"),
        "MP4 without its header": (mp4[: mdat + 100], "video cannot be decoded"),
        "MP4 of a first box": (mp4[:32], "video cannot be decoded"),
        "MP4 of sound": (sound_file(), "no video stream"),
        "MP4 of nothing": (lying_mp4(n=0), "cannot be decoded"),
        "MP4 of zeros for frames": (
            mp4[:mdat] + zeros + mp4[mp4.index(b"moov") - 4 :], "cannot be decoded",
        ),
        "MP4 with compressed headers": (lying_mp4()[:20] + _box(b"moov", cmov), "compressed headers"),
        "MP4 of 2^27 frames of a byte": (lying_mp4(n=many, size=1, a_chunk=many), "134217728 frames"),
        "MP4 of 2^27 frames in a wrong place": (
            lying_mp4(n=many, size=1, a_chunk=many, wrapper=b"udta"), "134217728 frames",
        ),
        "MP4 of 2^27 samples of sound": (
            lying_mp4(n=many, size=1, a_chunk=many, handler=b"soun"), "no video stream",
        ),
        "MP4 with a fragment of 2^30 frames": (_fragments(2**30), "frames; at most"),
        "MP4 of frames that are one": (lying_mp4(n=900, size=60_000), "more bytes than the file"),
        "MP4 of 8000 x 4000": (lying_mp4(width=8000, height=4000), "8000 x 4000, which is 32000000 pixels"),
        "MP4 of 16000 x 16000": (lying_mp4(width=16000, height=16000), "cannot be decoded"),
        "MP4 of an unknown codec": (lying_mp4(codec=b"zzzz"), "coded as"),
        "MP4 of raw frames": (lying_mp4(codec=b"raw "), "coded as"),
        "MP4 of years": (lying_mp4(n=100, ticks=10**8), "seconds; at most 7200"),
        "WebM head": (webm[:40], "video cannot be decoded"),
        "WebM cut before a frame": (webm[: webm.index(b"\x1f\x43\xb6\x75")], "the video"),
        "WebM of noise": (webm[:4] + bytes(range(256)) * 8, "video cannot be decoded"),
        "AVI head": (avi[:200], "video"),
        "10,000 by 10": (video_file(moving(2, 10, 10000)), "10000 x 10 pixels"),
    }  # fmt: skip
    parts = {name: Broken(VideoPart(data), words) for name, (data, words) in files.items()}
    small = moving(40, 32, 32)
    over = {
        "over the bytes": (bytes(2001), "2000 are read", Limits(video_bytes=2000)),
        "over the frames": (video_file(small), "at most 39 are read", Limits(video_frames=39)),
        "over the frames, in WebM": (webm, "the video has over 39 frames", Limits(video_frames=39)),
        "over the time": (
            video_file(small[:2], at_ms=[0, 61_000]), "61 seconds; at most 60", Limits(video_s=60),
        ),
        "over the pixels of a frame": (
            video_file(small), "32 x 32, which is 1024 pixels", Limits(video_frame_pixels=1000),
        ),
        "over the pixels of all": (video_file(small), "at most 40000 are decoded", Limits(video_work=40_000)),
        "over the tokens": (
            video_file(moving(8, 16, 2000), fps=1), "at most 100 are allowed", Limits(video_tokens=100),
        ),
    }  # fmt: skip
    parts |= {name: Broken(VideoPart(data), words, limits) for name, (data, words, limits) in over.items()}
    # A header that says less than the decoder then finds.
    wide = video_file(moving(4, 240, 648), "libvpx", "webm")
    less = wide.replace(b"\xb0\x82\x02\x88", b"\xb0\x82\x01\x88")
    assert less != wide
    parts["frames larger than their header"] = Broken(
        VideoPart(less), "the video", Limits(video_frame_pixels=640 * 240)
    )
    return parts
