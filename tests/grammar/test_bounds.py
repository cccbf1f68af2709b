"""What keeps the work of a grammar bounded: repetitions, brackets, control tokens, long texts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from flashnext.grammar import Grammar, GrammarError
from flashnext.grammar.regexes import MAX_POSITIONS, positions
from support.grammars import accepts, compiler, tokenizer


def refused(make: Callable[[], Grammar]) -> GrammarError:
    with pytest.raises(GrammarError) as found:
        compiler().compile(make())
    return found.value


@pytest.mark.parametrize(
    ("pattern", "n"),
    [
        ("abc", 3),
        ("a{3}b", 4),
        ("(ab|c){4}", 12),
        ("(a{3}b{2}){5}x", 26),
        ("a{2}{3}", 6),
        ("a{2,}?b*", 3),
        ("(a{0,7}){,3}", 21),
        (r"\p{L}{5}\{9}[a-z{9}]", 9),
        ("(?:(?P<x>a){2}){2}", 4),
        ("[[:alpha:]{9}](a)", 2),
        ("[]{9}a]{2}", 2),
    ],
)
def test_the_size_of_a_regex_is_that_of_its_repetitions_written_out(pattern: str, n: int) -> None:
    assert positions(pattern) == n


BOMBS = [
    "(a{1000}){1000}",
    "x{99999}", "x{0,99999}", "x{99999,}", "((x{99}){99}){99}", "a{99}{99}{99}", "(a{99}|b){99}",
    "x{4294967296}", "x{99999999999999999999}", r"\p{L}{99999}", "[a-z]{99999}",
]  # fmt: skip


@pytest.mark.parametrize("pattern", BOMBS)
def test_repetitions_that_multiply_are_refused_wherever_a_regex_stands(pattern: str) -> None:
    for make in (
        lambda: Grammar.regex(pattern),
        lambda: Grammar.lark(f"start: /{pattern}/"),
        lambda: Grammar.json_schema({"type": "string", "pattern": pattern}),
        lambda: (
            Grammar.lark(f'start: %json {{"patternProperties": {{"{pattern}": {{}}}}}}')
            if "\\" not in pattern
            else Grammar.regex(pattern)
        ),
    ):
        assert "written out" in str(refused(make)) and str(MAX_POSITIONS) in str(refused(make))


@pytest.mark.parametrize(
    "text",
    [
        "start: A\nA: B{1000}\nB: C{1000}\nC: /x/",
        "start: A\nA: (B~99 | /y{99}/)~99\nB: /x/",
        'start: A\nA: "abcdefghij"{1000}',
        "start: "
        + " ".join(f"/a{i}x{{900}}/" for i in range(40))
        + '\np::0x0\np::_: "z" | "a" p::set_bit(0)',
        "start: (\nfoo /(a{800}){10}/ /(b{800}){10}/ /(c{800}){10}/ /(d{800}){10}/ /(e{800}){10}/ p::0)",
        "start: /(a{800}){10}/ | /(b{799}){10}/ | /(c{799}){10}/ | /(d{799}){10}/ | /(e{799}){10}/",
    ],
)
def test_terminals_that_multiply_are_refused(text: str) -> None:
    assert "written out" in str(refused(lambda: Grammar.lark(text)))


def test_terminals_that_lead_to_themselves_or_very_deep_are_refused() -> None:
    assert "leads to itself" in str(refused(lambda: Grammar.lark('start: A\nA: "x" B\nB: A')))
    chain = "\n".join(f"A{i}: A{i + 1}" for i in range(5000))
    assert "levels deep" in str(refused(lambda: Grammar.lark(f'start: A0\n{chain}\nA5000: "x"')))


def test_terminals_that_only_follow_one_another_are_counted_once_each() -> None:
    texts = {f"T{i}": f"{i:03}{'x' * 147}" for i in range(200)}
    many = f"start: {' '.join(texts)}\n" + "\n".join(f'{name}: "{text}"' for name, text in texts.items())
    assert compiler().compile(Grammar.lark(many))
    assert "written out" in str(refused(lambda: Grammar.lark(many.replace('x"', f'x{"x" * 20}"'))))
    split = "start: (\nA\n| B)\nA: B~99\n | B\nB: /y{99}/\n"
    assert "written out" in str(refused(lambda: Grammar.lark(split)))


def test_what_only_looks_like_brackets_or_look_around_is_taken() -> None:
    for pattern, good, bad in (
        ("[(?=]+", "(?=", "a"),
        (r"\(\?=", "(?=", ""),
        ("[({]{3}" * 40, "({(" * 40, "("),
        ("[$^]", "$", "a"),
    ):
        compiled = compiler().compile(Grammar.regex(pattern))
        assert accepts(compiled, good) and not accepts(compiled, bad), pattern
    assert "look-around" in str(refused(lambda: Grammar.regex("[)]a(?!b)")))
    text = 'start: A "(?=" // (((\nA: /[(?=]{2}/ # {{{\n'
    assert accepts(compiler().compile(Grammar.lark(text)), "((" + "(?=")
    assert "(?x)" in str(refused(lambda: Grammar.regex("(?x)a {99999}")))


@pytest.mark.parametrize(
    "name", ["<|im_start|>", "<think>", "<|im_end|>", "<[{}]>", "<[0-{}]>", "<[1,{}]>", "<[^1]>"]
)
def test_a_grammar_names_no_control_token(name: str) -> None:
    text = f'start: {name.format(tokenizer().control_ids["<|im_start|>"])} "x"'
    assert "control token" in str(refused(lambda: Grammar.lark(text)))


def test_a_control_token_in_quotes_is_text_and_other_tokens_may_be_named() -> None:
    compiled = compiler().compile(Grammar.lark('start: "<think>y" | /<think>x/ | %json {"const": "<think>"}'))
    assert all(accepts(compiled, text) for text in ("<think>y", "<think>x", '"<think>"'))
    assert not accepts(compiled, "<think>", "y")
    token = tokenizer().encode("a")[0]
    assert accepts(compiler().compile(Grammar.lark(f"start: <[{token}]>")), "a")


def test_json_within_a_grammar_is_checked_like_any_other() -> None:
    for schema in ('{"not": {}}', '{"items": {"uniqueItems": true}}', "{"):
        refused(lambda schema=schema: Grammar.lark(f"start: %json {schema}"))  # type: ignore[misc]
    assert "%override" in str(refused(lambda: Grammar.lark('%override x\nstart: "a"')))


@pytest.mark.parametrize(
    ("make", "pointer"),
    [
        (lambda: Grammar.choice(["a", "x" * (MAX_POSITIONS + 1)]), ""),
        (lambda: Grammar.lark(f'start: "{"x" * (MAX_POSITIONS + 1)}"'), ""),
        (lambda: Grammar.json_schema({"items": {"const": ["x" * (MAX_POSITIONS + 1)]}}), "/items/const"),
        (lambda: Grammar.json_schema({"enum": [1, "x" * (MAX_POSITIONS + 1)]}), "/enum/1"),
        (lambda: Grammar.json_schema({"properties": {"x" * (MAX_POSITIONS + 1): {}}}), "/properties"),
        (lambda: Grammar.json_schema({"required": ["x" * (MAX_POSITIONS + 1)]}), "/required"),
    ],
)
def test_a_text_that_is_too_long_to_be_looked_at_for_each_mask_is_refused(
    make: Callable[[], Grammar], pointer: str
) -> None:
    error = refused(make)
    assert error.pointer == pointer and str(MAX_POSITIONS) in str(error)


def allof(n: int, m: int) -> dict[str, Any]:
    """One of m objects, n times over: there are m to the power of n ways."""
    return {
        "type": "object",
        "allOf": [
            {"anyOf": [{"properties": {f"p{i}{j}": {"type": "integer"}}} for i in range(m)]} for j in range(n)
        ],
    }


def test_alternatives_that_multiply_are_refused() -> None:
    compiler().compile(Grammar.json_schema(allof(2, 5)))
    compiler().compile(Grammar.json_schema({"anyOf": [{"const": i} for i in range(500)]}))
    assert "alternatives" in str(refused(lambda: Grammar.json_schema(allof(20, 5))))
    doubled: dict[str, Any] = {
        f"a{i}": {"allOf": [{"anyOf": [{"$ref": f"#/$defs/a{i + 1}"}, {"type": "null"}]}] * 2}
        for i in range(60)
    }
    schema = {"$ref": "#/$defs/a0", "$defs": {**doubled, "a60": {"type": "integer"}}}
    assert "alternatives" in str(refused(lambda: Grammar.json_schema(schema)))


def properties(n: int, name: str = "p") -> dict[str, Any]:
    return {"properties": {f"{name}{i}": {"type": "integer"} for i in range(n)}}


def test_properties_are_counted_over_all_that_has_to_hold_together_and_over_all_objects() -> None:
    joined = {"type": "object", "allOf": [properties(600), properties(600, "q")]}
    assert refused(lambda: Grammar.json_schema(joined)).pointer == "/allOf"
    large = {"anyOf": [properties(900, f"o{i}p") for i in range(4)]}
    assert "properties" in str(refused(lambda: Grammar.json_schema(large)))


def test_a_length_beside_a_pattern_is_bounded_and_alone_is_not() -> None:
    compiler().compile(Grammar.json_schema({"type": "string", "maxLength": 100_000}))
    schema = {"type": "string", "pattern": "^(ab|c)*$", "minLength": 4, "maxLength": 50_000}
    assert refused(lambda: Grammar.json_schema(schema)).pointer == "/maxLength"
