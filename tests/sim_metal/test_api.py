"""What the Metal device uses exists on a Mac with the types and values that the simulated headers say."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from support.metal_api import HEADERS, differences, read_header, read_headers, read_metadata, read_wheel

ROOT = Path(__file__).parents[2]
# Of plain properties of classes the metadata says nothing, since a Mac's runtime knows their types, and of
# two methods of one name it tells one. Each as Apple's documentation has it.
KNOWN = {
    "setLanguageVersion:": "MTLCompileOptions.languageVersion",
    "setMathMode:": "MTLCompileOptions.mathMode, macOS 15",
    "setMathFloatingPointFunctions:": "MTLCompileOptions.mathFloatingPointFunctions, macOS 15",
    "setComputeFunction:": "MTLComputePipelineDescriptor.computeFunction",
    "setBinaryArchives:": "MTLComputePipelineDescriptor.binaryArchives, macOS 11",
    "setUrl:": "MTLBinaryArchiveDescriptor.url, macOS 11",
    "status": "MTLCommandBuffer.status is an NSUInteger; what is told is MTLIOCommandBuffer.status",
    "setErrorOptions:": "MTLCommandBufferDescriptor.errorOptions, macOS 11",
}
METADATA = (
    "import objc\n"
    "enums = '$MTLGood@3$MTLOther@4$'\nconstants = '$MTLKey$'\nfunctions = {'MTLMake': (b'@',)}\n"
    "objc.createStructType('Metal.MTLSize', b'{MTLSize=QQQ}', ['width', 'height', 'depth'])\n"
    "r = objc.registerMetaDataForSelector\n"
    "r(b'NSObject', b'length', {'retval': {'type': b'Q'}})\n"
    "r(b'NSObject', b'put:at:', {'retval': {'type': b'v'},\n"
    "  'arguments': {2: {'type': b'@'}, 3: {'type': b'Q'}}})\n"
    "r(b'NSObject', b'setOn:', {'arguments': {2: {'type': b'Z'}}})\n"
)
HEADER = (
    "typedef struct {\n  NSUInteger width, height, depth;\n} MTLSize;\n"
    "typedef NS_ENUM(NSUInteger, MTLKind){\n    MTLGood = 3,\n};\n"
    "extern NSString* const MTLKey;\n"
    "@protocol MTLThing <NSObject>\n- (NSUInteger)length;\n"
    "- (void)put:(id<MTLThing>)thing\n    at:(MTLKind)kind;\n"
    "- (void)setOn:(BOOL)on;\n@end\nid<MTLThing> MTLMake(void);\n"
)


@pytest.fixture(scope="module")
def wheel() -> Path:
    path = os.environ.get("FLASHNEXT_PYOBJC_METAL", "")
    if not path:
        pytest.skip("needs FLASHNEXT_PYOBJC_METAL, a wheel of pyobjc-framework-Metal (docs/metal.md)")
    return Path(path)


def test_headers_agree_with_apples_metadata(wheel: Path) -> None:
    ours = read_headers()
    assert len(ours.methods) > 60 and len(ours.enums) > 20
    assert differences(ours, read_wheel(wheel), KNOWN) == []


def test_what_is_known_otherwise_has_to_be(wheel: Path) -> None:
    without = "\n".join(differences(read_headers(), read_wheel(wheel), {}))
    assert {name for name in KNOWN if name not in without} == set()


def test_every_method_that_is_declared_is_used() -> None:
    used = "".join(path.read_text() for path in ROOT.glob("cpp/device/metal/*"))
    names = {part for name in read_headers().methods for part in [name.split(":")[0]]}
    simulated = {"allocatedSize"}  # what the simulated classes of buffers need to be allocations
    assert {n for n in names if not re.search(rf"\b{n}\b", used)} == simulated


def test_every_class_and_function_of_the_headers_is_apples_by_name() -> None:
    text = (HEADERS / "Metal" / "Metal.h").read_text()
    assert all(name.startswith("MTL") for name in re.findall(r"@(?:interface|protocol) (\w+)", text))


def test_a_sound_header_has_no_differences() -> None:
    assert differences(read_header(HEADER), read_metadata(METADATA), {}) == []


@pytest.mark.parametrize(
    ("sound", "wrong", "says"),
    [
        ("length;", "extent;", "there is no method extent"),
        ("(NSUInteger)length", "(NSInteger)length", "length is q, not Q"),
        ("at:(MTLKind)", "at:(BOOL)", "put:at: is v @ Z, not v @ Q"),
        ("(BOOL)on", "(NSUInteger)on", "setOn: is v Q, not  Z"),
        ("MTLGood = 3", "MTLGood = 4", "MTLGood is 4, not 3"),
        ("height, depth", "depth, height", "MTLSize is"),
        ("MTLKey", "MTLUnheard", "there is no constant MTLUnheard"),
        ("MTLMake", "MTLUnheard", "there is no function MTLUnheard"),
    ],
)
def test_a_planted_difference_is_told(sound: str, wrong: str, says: str) -> None:
    assert sound in HEADER
    found = differences(read_header(HEADER.replace(sound, wrong)), read_metadata(METADATA), {})
    assert len(found) == 1 and found[0].startswith(says), found
