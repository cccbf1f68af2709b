"""Structured output: what a reply may say, by a schema, a regex, a choice, a grammar or calls of tools."""

from flashnext.grammar.compiler import Compiled, Compiler, Vocabulary
from flashnext.grammar.matching import Matching, no_masks
from flashnext.grammar.spec import Grammar, GrammarError

__all__ = ["Compiled", "Compiler", "Grammar", "GrammarError", "Matching", "Vocabulary", "no_masks"]
