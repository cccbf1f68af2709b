"""Pictures: modes, orientations, transparency, animations, sizes, and what names them."""

from __future__ import annotations

import io
import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from flashnext.media import ImagePart, ImageRule, Limits, Media, Rules, VideoRule, count_tokens, prepare
from flashnext.media.image import open_image, resized
from PIL import Image
from support.media_files import chunk, corpus, encoded, pixels, png
from support.reference import media as reference

AS_IT_IS = Rules(image=ImageRule(min_pixels=1, max_pixels=2**40))
"""Pictures whose sides are multiples of 32 keep them."""


def _seen(data: bytes) -> npt.NDArray[np.uint8]:
    """The upright RGB picture that a file is decoded to."""
    return np.asarray(open_image(data, Limits()).decode())


def _prepared(data: bytes, rules: Rules | None = None, **limits: Any) -> Media:
    return prepare(ImagePart(data), rules or Rules(), Limits(**limits))


def _turned(a: npt.NDArray[np.uint8], orientation: int) -> npt.NDArray[np.uint8]:
    """What a camera with this orientation would have stored for an upright `a` (EXIF 2.3, 4.6.4)."""
    return {
        1: a, 2: a[:, ::-1], 3: a[::-1, ::-1], 4: a[::-1], 5: a.swapaxes(0, 1),
        6: a.swapaxes(0, 1)[::-1], 7: a[::-1, ::-1].swapaxes(0, 1), 8: a.swapaxes(0, 1)[:, ::-1],
    }[orientation]  # fmt: skip


def _exif(orientation: int) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return exif.tobytes()


@pytest.mark.parametrize("kind", ["PNG", "WEBP", "TIFF"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_every_orientation_is_turned_upright(kind: str, orientation: int) -> None:
    a = pixels(np.random.default_rng(orientation), 31, 47)
    how: dict[str, Any] = {"lossless": True} if kind == "WEBP" else {}
    stored = Image.fromarray(np.ascontiguousarray(_turned(a, orientation)))
    assert np.array_equal(_seen(encoded(stored, kind, exif=_exif(orientation), **how)), a)


def test_a_jpeg_is_turned_before_it_is_resized() -> None:
    a = pixels(np.random.default_rng(0), 64, 320)
    plain = encoded(Image.fromarray(a), "JPEG", quality=95)
    turned = encoded(Image.fromarray(a), "JPEG", quality=95, exif=_exif(6))
    assert np.array_equal(_seen(turned), np.rot90(_seen(plain), -1))
    assert _prepared(turned).grid == (1, _prepared(plain).grid[2], _prepared(plain).grid[1])


@pytest.mark.parametrize("orientation", [0, 9, 65535])
def test_an_orientation_that_does_not_exist_is_upright(orientation: int) -> None:
    a = pixels(np.random.default_rng(0), 20, 30)
    assert np.array_equal(_seen(encoded(Image.fromarray(a), "PNG", exif=_exif(orientation))), a)


def test_broken_exif_is_no_reason_to_refuse_a_picture() -> None:
    a = pixels(np.random.default_rng(0), 20, 30)
    whole = encoded(Image.fromarray(a), "PNG")
    beyond, long = b"MM\0*\xff\xff\xff\xff", b"II*\0\x08\0\0\0\xff\xff" + bytes(30)
    for exif in (b"", b"II*\0", b"nonsense", beyond, long):
        assert np.array_equal(_seen(whole[:33] + chunk(b"eXIf", exif) + whole[33:]), a)


def test_what_is_transparent_lies_over_white() -> None:
    a = np.zeros((2, 4, 4), np.uint8)
    a[..., 0] = 200
    a[0, :, 3], a[1, :, 3] = (0, 51, 128, 255), 255
    # white + alpha * (colour - white), rounded
    row = [[255, 255, 255], [244, 204, 204], [227, 127, 127], [200, 0, 0]]
    for kind, how in (("PNG", {}), ("WEBP", {"lossless": True, "exact": True})):
        assert _seen(encoded(Image.fromarray(a), kind, **how)).tolist() == [row, [[200, 0, 0]] * 4]
    grey = Image.fromarray(a[..., 0]).convert("LA")
    grey.putalpha(Image.fromarray(a[..., 3]))
    assert _seen(encoded(grey, "PNG"))[0, :, 0].tolist() == [255, 244, 227, 200]


def test_a_large_transparent_picture_is_done_in_bands_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    data = encoded(Image.fromarray(pixels(np.random.default_rng(0), 50, 30, 4)), "PNG")
    whole = _seen(data)
    for n_pixels in (1, 30, 100, 1499):
        monkeypatch.setattr("flashnext.media.image.BAND_PIXELS", n_pixels)
        assert np.array_equal(_seen(data), whole)


def test_palettes_give_their_colours_and_what_they_make_transparent_is_white() -> None:
    image = Image.new("P", (3, 1))
    image.putpalette([255, 0, 0, 0, 255, 0, 0, 0, 255])
    image.putdata([0, 1, 2])
    colours = [[255, 0, 0], [0, 255, 0], [0, 0, 255]]
    white = [255, 255, 255]
    for kind in ("PNG", "GIF", "BMP"):
        assert _seen(encoded(image, kind)).tolist() == [colours]
    for kind in ("PNG", "GIF"):
        assert _seen(encoded(image, kind, transparency=1)).tolist() == [[colours[0], white, colours[2]]]
    half = _seen(encoded(image, "PNG", transparency=bytes([0, 255, 51]))).tolist()
    assert half == [[white, colours[1], [204, 204, 255]]]


def test_a_colour_key_makes_pixels_white() -> None:
    a = np.array([[[1, 2, 3], [1, 2, 4]]], np.uint8)
    data = encoded(Image.fromarray(a), "PNG", transparency=(1, 2, 3))
    assert _seen(data).tolist() == [[[255] * 3, [1, 2, 4]]]


def test_of_16_bits_the_high_8_count() -> None:
    a = np.array([[0, 255, 256, 511, 32768, 65280, 65535]], np.uint16)
    high = [0, 0, 1, 1, 128, 255, 255]
    for kind in ("PNG", "TIFF"):
        assert _seen(encoded(Image.fromarray(a), kind))[0, :, 0].tolist() == high
    big_endian = b"".join(b"\0" + row.astype(">u2").tobytes() for row in a)
    assert _seen(png(7, 1, rows=big_endian, depth=16, colour=0))[0].tolist() == [[n] * 3 for n in high]
    three = b"".join(b"\0" + np.repeat(row, 3).astype(">u2").tobytes() for row in a)
    assert _seen(png(7, 1, rows=three, depth=16, colour=2))[0].tolist() == [[n] * 3 for n in high]
    key = chunk(b"tRNS", b"\x01\xff")  # one of the two values that become 1
    seen = _seen(png(7, 1, key, rows=big_endian, depth=16, colour=0))
    assert seen[0, :, 0].tolist() == [0, 0, 1, 255, 128, 255, 255]


def test_black_and_white_has_no_shade_between() -> None:
    bits = np.array([[0, 255, 255, 0]], np.uint8)
    assert _seen(encoded(Image.fromarray(bits).convert("1"), "PNG"))[0, :, 1].tolist() == bits[0].tolist()


def _twin() -> npt.NDArray[np.uint8]:
    """Large even fields, which survive a JPEG."""
    fields = np.array(
        [[250, 30, 20], [20, 200, 30], [30, 40, 230], [255, 255, 255], [0, 0, 0], [128, 128, 128]]
    )
    return np.repeat(np.repeat(fields[None], 32, 1), 32, 0).astype(np.uint8)


def _near(a: npt.NDArray[np.uint8], b: npt.NDArray[np.uint8]) -> None:
    centres = (slice(8, 24), slice(8, None, 32))
    assert np.abs(a[centres].astype(int) - b[centres]).max() <= 6  # what quality 95 costs in an even field


def test_cmyk_and_ycck_have_the_colours_of_their_rgb_twin() -> None:
    rgb = _twin()
    ink = 255 - rgb.astype(int)
    black = ink.min(2, keepdims=True)
    colour = (ink - black) * 255 / np.maximum(255 - black, 1)  # a share of what black leaves
    cmyk = np.concatenate([colour.round().astype(int), black], 2)
    image = Image.fromarray(cmyk.astype(np.uint8), "CMYK")
    _near(_seen(encoded(image, "JPEG", quality=95, subsampling=0)), rgb)
    _near(_seen(encoded(image, "TIFF")), rgb)
    # The same with inks as luma and chroma, as Adobe writes them: inverted, and transform 2 in its marker.
    first = Image.fromarray(cmyk[..., :3].astype(np.uint8)).convert("YCbCr")
    stored = np.concatenate([np.asarray(first), (255 - cmyk[..., 3:]).astype(np.uint8)], 2)
    data = encoded(Image.fromarray(255 - stored, "CMYK"), "JPEG", quality=95, subsampling=0)
    at = data.index(b"Adobe") + 11
    assert data[at] == 0
    _near(_seen(data[:at] + b"\2" + data[at + 1 :]), rgb)


def test_a_grey_and_a_coloured_jpeg_both_become_rgb() -> None:
    a = pixels(np.random.default_rng(1), 64, 64)
    for image in (Image.fromarray(a), Image.fromarray(a[..., 0])):
        assert _prepared(encoded(image, "JPEG")).levels.shape[1] == 3


def _animated(kind: str) -> bytes:
    first, *rest = (Image.new("RGB", (32, 32), colour) for colour in ("red", "lime", "blue"))
    how: dict[str, Any] = {"lossless": True} if kind == "WEBP" else {}
    return encoded(first, kind, save_all=True, append_images=rest, duration=100, **how)


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG"])
def test_of_an_animation_the_first_frame_is_seen(kind: str) -> None:
    data = _animated(kind)
    assert getattr(Image.open(io.BytesIO(data)), "n_frames", 1) == 3
    assert np.array_equal(_seen(data), np.full((32, 32, 3), (255, 0, 0), np.uint8))


def test_of_several_pictures_in_a_jpeg_the_first_is_seen() -> None:
    a, b = (Image.new("L", (32, 32), grey) for grey in (10, 240))
    data = encoded(a, "MPO", save_all=True, append_images=[b])
    assert _seen(data).max() < 20


def test_the_first_bytes_decide_what_a_file_is() -> None:
    a = pixels(np.random.default_rng(1), 20, 30)
    for kind in ("PNG", "GIF", "BMP", "TIFF", "WEBP", "JPEG"):
        assert _seen(encoded(Image.fromarray(a), kind)).shape == a.shape


def _bicubic(n: int, size: int) -> npt.NDArray[np.float64]:
    """The (size, n) matrix of a smoothed bicubic resize with a = -1/2, in float64."""
    scale = n / size
    wide = max(scale, 1.0)
    out = np.zeros((size, n))
    for i in range(size):
        centre = (i + 0.5) * scale
        low, high = max(int(centre - 2 * wide + 0.5), 0), min(int(centre + 2 * wide + 0.5), n)
        x = np.abs((np.arange(low, high) + 0.5 - centre) / wide)
        near = (1.5 * x - 2.5) * x * x + 1
        far = ((-0.5 * x + 2.5) * x - 4) * x + 2
        weights = np.where(x < 1, near, np.where(x < 2, far, 0.0))
        out[i, low:high] = weights / weights.sum()
    return out


@pytest.mark.parametrize(
    ("own", "size"),
    [((50, 40), (288, 224)), ((300, 500), (96, 160)), ((33, 900), (32, 896)), ((7, 5), (320, 224))],
)
def test_resizing_is_bicubic_with_smoothing(own: tuple[int, int], size: tuple[int, int]) -> None:
    a = pixels(np.random.default_rng(sum(own)), *own)
    across = np.einsum("wv,hvc->hwc", _bicubic(own[1], size[1]), a.astype(float))
    across = np.clip(np.floor(across + 0.5), 0, 255)  # Pillow keeps 8 bits between the two passes
    down = np.einsum("hg,gwc->hwc", _bicubic(own[0], size[0]), across)
    expected = np.clip(np.floor(down + 0.5), 0, 255)
    got = resized(Image.fromarray(a), size)
    # Weights of 22 bits: a sum that is within 2^-14 of a half may be rounded the other way, in either pass.
    assert np.abs(got - expected).max() <= 1
    assert (got != expected).mean() < 0.002


def test_patches_are_those_of_the_reference() -> None:
    for picture in corpus(35, seed=4):
        ours = _prepared(picture.data)
        seen = Image.fromarray(_seen(picture.data))
        height, width = reference.smart_resize_image(seen.height, seen.width)
        frame = resized(seen, (height, width)).transpose(2, 0, 1) / 255
        patches, grid = reference.patchify((frame[None] - 0.5) / 0.5)
        assert ours.grid == grid and ours.n_tokens == grid[1] * grid[2] // 4
        assert np.abs(ours.patches() - patches).max() <= 2**-23  # one rounding to float32 after another
        part = ours.patches(3, 9)
        assert np.array_equal(part, ours.patches()[3:9])


def test_mean_and_deviation_are_those_of_the_rule() -> None:
    mean, std = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
    rules = Rules(image=ImageRule(min_pixels=1, mean=mean, std=std))
    a = pixels(np.random.default_rng(2), 32, 32)
    got = _prepared(encoded(Image.fromarray(a), "PNG"), rules).patches()[0].reshape(3, 2, 16, 16)
    for c in range(3):
        expected = (a[:16, :16, c] / 255 - mean[c]) / std[c]
        assert np.abs(got[c] - expected).max() < 2**-20


@pytest.mark.parametrize("size", [(1, 1), (2, 3), (31, 639), (639, 31), (1, 200)])
def test_no_side_is_below_a_token(size: tuple[int, int]) -> None:
    data = encoded(Image.fromarray(pixels(np.random.default_rng(0), *size)), "PNG")
    for tokens in (None, 1, 4, 10, 64):
        media = _prepared(data, image_tokens=tokens)
        assert min(media.grid[1:]) >= 2
        assert media.n_tokens <= max(tokens or math.inf, 200)


def test_counting_reads_the_header_alone() -> None:
    for picture in corpus(35, seed=5):
        part = ImagePart(picture.data)
        assert count_tokens(part, Rules(), Limits()) == prepare(part, Rules(), Limits()).n_tokens
    data = encoded(Image.fromarray(pixels(np.random.default_rng(0), 900, 900)), "PNG")
    assert count_tokens(ImagePart(data[:100]), Rules(), Limits()) == 28 * 28


def test_equal_pixels_have_equal_keys_whatever_the_file() -> None:
    a = pixels(np.random.default_rng(0), 64, 64)
    image = Image.fromarray(a)
    keys = {_prepared(encoded(image, kind)).key for kind in ("PNG", "BMP", "TIFF")}
    assert len(keys) == 1 and len(keys.pop()) == 32


def test_a_key_changes_with_everything_that_the_tower_sees() -> None:
    a = pixels(np.random.default_rng(0), 64, 128)
    other = a.copy()
    other[63, 127, 2] ^= 1
    data = encoded(Image.fromarray(a), "PNG")
    made = [
        _prepared(data, AS_IT_IS),
        _prepared(encoded(Image.fromarray(other), "PNG"), AS_IT_IS),
        _prepared(encoded(Image.fromarray(a.reshape(128, 64, 3)), "PNG"), AS_IT_IS),
        _prepared(data, Rules(image=ImageRule(min_pixels=1, mean=(0.4, 0.5, 0.5)))),
        _prepared(data, Rules(image=ImageRule(min_pixels=1, patch=32, merge=1))),
        _prepared(data),
    ]
    assert len({media.key for media in made}) == len(made)
    assert _prepared(data, Rules(AS_IT_IS.image, VideoRule(fps=1.0))).key == made[0].key


def test_a_pictures_levels_cannot_be_written() -> None:
    media = _prepared(encoded(Image.new("RGB", (32, 32)), "PNG"))
    with pytest.raises(ValueError, match="read-only"):
        media.levels[0] = 1
