"""`data:` URLs."""

from __future__ import annotations

import base64

import pytest
from flashnext.media import MediaError, read_data_url

DATA = bytes(range(256)) * 2 + b"abc"
TEXT = base64.b64encode(DATA).decode()


@pytest.mark.parametrize(
    "head",
    [
        "data:image/png;base64,",
        "DATA:image/jpeg;charset=x;BASE64,",
        "data:;base64,",
        "data:text/plain;base64,",
    ],
)
def test_the_bytes_come_out_whatever_type_is_claimed(head: str) -> None:
    assert read_data_url(head + TEXT, 1000) == DATA


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_padding_may_be_missing(n: int) -> None:
    text = base64.b64encode(DATA[:n]).decode()
    for form in (text, text.rstrip("=")):
        assert read_data_url("data:image/png;base64," + form, 1000) == DATA[:n]


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("", "expected a URL of the form data:"),
        ("https://example.com/a.png", "expected a URL of the form data:"),
        ("data:image/png;base64" + TEXT, "with a comma"),
        ("data:" + "x" * 400 + ";base64," + TEXT, "expected a URL of the form data:"),
        ("data:image/png,%89PNG", "not percent-encoded"),
        ("data:image/png;base64,@@@", "'@' at character 0"),
        ("data:image/png;base64,AAAA%3D%3D", "'%' at character 4"),
        ("data:image/png;base64,AA AA", "no white space"),
        ("data:image/png;base64,AAAA\n", r"'\\n' at character 4"),
        ("data:image/png;base64,AAA=\n", r"'\\n' at character 4"),
        ("data:image/png;base64,AA== \n", "' ' at character 4"),
        ("data:image/png;base64,AA-_", "'-' at character 2"),
        ("data:image/png;base64,AAAÄ", r"'\\xc4' at character 3"),
        ("data:image/png;base64,", "holds no bytes"),
        ("data:image/png;base64,A", "a length that no bytes have"),
        ("data:image/png;base64,AA=A", "'=' at character 2"),
        ("data:image/png;base64,AAAA====", "a length that no bytes have"),
        ("data:image/png;base64,=AAA", "'=' at character 0"),
    ],
)
def test_what_is_not_such_a_url_is_refused(url: str, words: str) -> None:
    with pytest.raises(MediaError, match=words):
        read_data_url(url, 1000)


@pytest.mark.parametrize("n", [0, 1, 2, 3, 4, 5])
def test_the_limit_is_met_to_the_byte(n: int) -> None:
    for most in range(1, 7):
        text = base64.b64encode(bytes(n + 1)).decode()
        url = "data:;base64," + text
        if n + 1 <= most:
            assert len(read_data_url(url, most)) == n + 1
        else:
            with pytest.raises(MediaError, match=f"at most {most} are read"):
                read_data_url(url, most)


def test_a_long_url_is_refused_before_it_is_looked_through() -> None:
    with pytest.raises(MediaError, match="at most 1000 are read"):
        read_data_url("data:image/png;base64," + "@" * 10**7, 1000)
