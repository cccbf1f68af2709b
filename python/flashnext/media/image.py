"""Decodes pictures: upright, opaque, 8 bits of red, green and blue a pixel."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from PIL import (
    BmpImagePlugin,
    GifImagePlugin,
    Image,
    JpegImagePlugin,
    PngImagePlugin,
    TiffImagePlugin,
    WebPImagePlugin,
)
from PIL.ImageFile import ImageFile

from flashnext.media.bounded import BoundedFile
from flashnext.media.errors import MediaError, complaint
from flashnext.media.limits import Limits
from flashnext.media.png import rows_are_missing
from flashnext.media.sizes import Size

FORMATS: tuple[tuple[str, tuple[bytes, ...], Callable[[io.BytesIO], ImageFile]], ...] = (
    ("PNG", (b"\x89PNG\r\n\x1a\n",), PngImagePlugin.PngImageFile),
    ("JPEG", (b"\xff\xd8\xff",), JpegImagePlugin.JpegImageFile),
    ("WebP", (b"RIFF",), WebPImagePlugin.WebPImageFile),
    ("GIF", (b"GIF87a", b"GIF89a"), GifImagePlugin.GifImageFile),
    ("BMP", (b"BM",), BmpImagePlugin.BmpImageFile),
    ("TIFF", (b"II*\0", b"MM\0*"), TiffImagePlugin.TiffImageFile),
)
"""What is decoded: name, first bytes, decoder. What a file is called or said to be does not count."""

MAX_SCANS = 256
"""Of a JPEG: each goes over the whole picture. Usual files have a dozen, thumbnails included."""

MAX_SCANNED_PIXELS = 2**31
"""Of a JPEG, scans times pixels: some seconds. A dozen scans of the largest picture come to a third of it."""

MAX_EXIF = 64
"""Parts of a JPEG with EXIF: the decoder puts them together one by one, and copies all before each."""

BAND_PIXELS = 2**22
"""Pixels of a transparent picture that are laid over white at a time."""

_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
"""What makes a picture with an EXIF orientation upright."""

_ORIENTATION = 0x0112
_SCAN, _EXIF = b"\xff\xda", b"Exif\0\0"


@dataclass(frozen=True)
class Opened:
    """A picture of which the header was read and nothing decoded.

    Attributes:
        name: Of its format.
        size: As it will be seen, upright.
    """

    name: str
    size: Size
    _data: bytes
    _file: ImageFile
    _orientation: int

    def decode(self) -> Image.Image:
        """Decode its first frame, upright, mode RGB, what is transparent over white.

        Raises:
            MediaError: The decoder's complaint.
        """
        if self.name == "PNG" and rows_are_missing(self._data):
            raise MediaError("the PNG cannot be decoded: its rows end before its height")
        try:
            self._file.load()
            turn = _UPRIGHT.get(self._orientation)
            image = self._file if turn is None else self._file.transpose(turn)
            return opaque(image)
        except MemoryError:
            raise
        except MediaError:
            raise
        except Exception as error:  # decoders raise what they like
            raise MediaError(f"the {self.name} cannot be decoded: {complaint(error)}") from None


def open_image(data: bytes, limits: Limits) -> Opened:
    """Read a picture's header and look whether it may be decoded.

    Raises:
        MediaError: It is no picture that is known here, is broken, or is larger than the limits.
    """
    if len(data) > limits.image_bytes:
        raise MediaError(f"the image has {len(data)} bytes; at most {limits.image_bytes} are read")
    name, opened = _decoder(data)
    if name == "WebP":
        # Its decoder takes memory for the whole canvas before the size can be asked for.
        _check_size(name, _webp_size(data), limits)
    if name == "JPEG":
        _check_parts(data)
    try:
        file = opened(BoundedFile(data))
    except MemoryError:
        raise
    except Exception as error:  # decoders raise what they like
        raise MediaError(f"the {name} cannot be read: {complaint(error)}") from None
    width, height = file.size
    _check_size(name, (height, width), limits)
    if name == "JPEG" and (n := data.count(_SCAN)) * width * height > MAX_SCANNED_PIXELS:
        raise MediaError(
            f"the JPEG has {n} scans of {width} x {height}, which is {n * width * height} pixels in all; "
            f"at most {MAX_SCANNED_PIXELS} are decoded"
        )
    orientation = 1 if name == "TIFF" else _orientation(file)  # whose decoder turns it by itself
    return Opened(name, (width, height) if orientation >= 5 else (height, width), data, file, orientation)


def opaque(image: Image.Image) -> Image.Image:
    """Bring a picture of any mode to RGB, with what is transparent over white.

    Raises:
        MediaError: Its pixels are numbers without a range that they could be brought from.

    Source: transformers 5.23, `convert_to_rgb`, but that 16 bits keep their high 8, where Pillow would cut
    off at 255.
    """
    if image.mode in ("I", "F"):
        raise MediaError("its pixels are 32-bit numbers, whose range is not known; give 8 or 16 bits")
    if image.mode.startswith("I;16"):
        image = _from_16_bits(image)
    if "A" not in image.getbands() and image.info.get("transparency") is None:
        return image if image.mode == "RGB" else image.convert("RGB")
    out = Image.new("RGB", image.size)
    rows = max(1, BAND_PIXELS // image.width)
    for top in range(0, image.height, rows):
        band = image.crop((0, top, image.width, min(top + rows, image.height))).convert("RGBA")
        white = Image.new("RGBA", band.size, (255, 255, 255, 255))
        out.paste(Image.alpha_composite(white, band).convert("RGB"), (0, top))
    return out


def resized(image: Image.Image, size: Size) -> npt.NDArray[np.uint8]:
    """Bring an RGB picture to a size, bicubic and smoothed; returns (height, width, 3) uint8."""
    return np.asarray(image.resize((size[1], size[0]), Image.Resampling.BICUBIC))


def _decoder(data: bytes) -> tuple[str, Callable[[io.BytesIO], ImageFile]]:
    for name, starts, decoder in FORMATS:
        if data.startswith(starts) and (name != "WebP" or data[8:12] == b"WEBP"):
            return name, decoder
    if not data:
        raise MediaError("the image has no bytes")
    known = ", ".join(name for name, _, _ in FORMATS)
    raise MediaError(f"the image is none of {known}: it begins with {data[:8].hex(' ')}")


def _check_size(name: str, size: Size, limits: Limits) -> None:
    height, width = size
    if width < 1 or height < 1:
        raise MediaError(f"the {name} has no pixels: it says that it is {width} x {height}")
    if width * height > limits.image_pixels:
        raise MediaError(
            f"the {name} is {width} x {height}, which is {width * height} pixels; "
            f"at most {limits.image_pixels} are decoded"
        )


def _check_parts(jpeg: bytes) -> None:
    """Look how many there are of the parts that cost the decoder more than their bytes."""
    if jpeg.count(_SCAN) > MAX_SCANS:
        raise MediaError(
            f"the JPEG has more than {MAX_SCANS} scans, each of which takes a pass over the image"
        )
    if (n := jpeg.count(_EXIF)) > MAX_EXIF:
        raise MediaError(f"the JPEG has EXIF in {n} parts; at most {MAX_EXIF} are read")


def _webp_size(data: bytes) -> Size:
    """Height and width of the canvas, as the first chunk says."""
    kind, at = data[12:16], data[20:30]
    if len(at) == 10:
        if kind == b"VP8X":
            return 1 + int.from_bytes(at[7:10], "little"), 1 + int.from_bytes(at[4:7], "little")
        if kind == b"VP8 " and at[3:6] == b"\x9d\x01\x2a":
            width, height = (int.from_bytes(at[i : i + 2], "little") & 0x3FFF for i in (6, 8))
            return height, width
        if kind == b"VP8L" and at[0] == 0x2F:
            bits = int.from_bytes(at[1:5], "little")
            return 1 + (bits >> 14 & 0x3FFF), 1 + (bits & 0x3FFF)
    raise MediaError("the WebP cannot be read: its header is cut off or of no known kind")


def _orientation(file: ImageFile) -> int:
    try:
        found = file.getexif().get(_ORIENTATION, 1)  # of a PNG it may stand behind the pixels
    except MemoryError:
        raise
    except Exception:  # what says which way is up is broken, the picture need not be
        return 1
    return found if found in _UPRIGHT else 1


def _from_16_bits(image: Image.Image) -> Image.Image:
    """Keep the high 8 bits of grey pixels; one value may stand for transparent ones."""
    values = np.asarray(image)
    grey = Image.fromarray((values >> 8).astype(np.uint8))
    clear = image.info.get("transparency")
    if clear is None:
        return grey
    alpha = Image.fromarray(np.where(values == clear, 0, 255).astype(np.uint8))
    return Image.merge("LA", (grey, alpha))
