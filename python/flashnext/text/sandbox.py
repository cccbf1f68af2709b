"""A Jinja environment for the templates of checkpoints: sandboxed, bounded, and tracking what it wrote.

Differs from the environment of transformers (Source: transformers 5.23, utils/chat_template_utils.py) in
three ways. String literals of the template are `Written`, so rendered text knows which characters the
template wrote. Loops, calls and operators count against a limit of processor time, and growing operations
against a limit of length, so a template cannot hold a server for ever. Filters and methods that could build
something huge in one step are left out.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterable
from datetime import datetime
from functools import lru_cache
from typing import Any, NoReturn

from jinja2 import TemplateError, nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from flashnext.errors import InvalidArgument
from flashnext.text.jsontext import dumps
from flashnext.text.written import Written, check_length

_FILTERS = (
    *(
        "abs",
        "capitalize",
        "count",
        "d",
        "default",
        "dictsort",
        "first",
        "float",
        "groupby",
        "int",
        "items",
        "last",
    ),
    *(
        "length",
        "list",
        "lower",
        "map",
        "max",
        "min",
        "reject",
        "rejectattr",
        "replace",
        "reverse",
        "round",
        "select",
    ),
    *("selectattr", "sort", "string", "title", "trim", "unique", "upper", "wordcount"),
)
_MAX_INT_BITS = 4096
_TICKS = 64
"""Every how many ticks the clock is read, which costs more than most of what is counted."""
_NAMES_OF_DICT = frozenset(dir(dict))
_MAX_ITEMS = 1_000_000
_GROWING_METHODS = frozenset(
    (
        "center",
        "encode",
        "expandtabs",
        "format",
        "format_map",
        "ljust",
        "maketrans",
        "rjust",
        "translate",
        "zfill",
    )
)


class TemplateRefusalError(TemplateError):
    """The template itself refused its input, by raise_exception."""


class _Generator(CodeGenerator):
    """Emits `Written` literals, and `environment.concat` wherever text is joined."""

    def visit_Const(self, node: nodes.Const, frame: Frame) -> None:
        value = node.as_const(frame.eval_ctx)
        if isinstance(value, str):
            self.write(f"environment.literal({value!r})")
        else:
            super().visit_Const(node, frame)

    def visit_TemplateData(self, node: nodes.TemplateData, frame: Frame) -> None:
        self.write(f"environment.literal({node.data!r})")

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:
        self.write("environment.concat(map(str, (")
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write(")))")

    def _output_const_repr(self, group: Iterable[Any]) -> str:
        return f"environment.literal({''.join(group)!r})"


class _GenerationTag(Extension):
    """`{% generation %}` marks assistant text for training; here its body is simply rendered."""

    tags = {"generation"}  # noqa: RUF012, the base class has it so

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _TemplateNamespace(Namespace):
    """Jinja's namespace without underscore names, by which templates have left the sandbox."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        values = dict(*args[1:], **kwargs)
        for name in values:
            _refuse_underscore(name)
        Namespace.__init__(args[0], values)

    def __setitem__(self, name: str, value: Any) -> None:
        _refuse_underscore(name)
        Namespace.__setitem__(self, name, value)


def _refuse_underscore(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace cannot hold {name!r}")


class TemplateEnvironment(ImmutableSandboxedEnvironment):
    """See the head of this file. May be shared by threads; each has its own limits."""

    code_generator_class = _Generator
    intercepted_binops = frozenset(["+", "*", "**", "%"])
    concat = staticmethod(Written.concat)
    literal = staticmethod(lru_cache(maxsize=4096)(Written.all_of))

    def __init__(self, now: Callable[[], datetime], limit_s: float) -> None:
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, optimized=False, extensions=[_GenerationTag, loopcontrols]
        )
        self._now = now
        self._limit_s = limit_s
        self._rendering = threading.local()
        self.filters = {name: self.filters[name] for name in _FILTERS}
        self.filters |= {"tojson": dumps, "safe": str, "indent": _indent, "join": self._join}
        self.globals = {
            "range": self.globals["range"],
            "dict": lambda *args, **kwargs: dict(*args, **kwargs),
            "namespace": _TemplateNamespace,
            "raise_exception": _raise_exception,
            "strftime_now": self._strftime_now,
        }

    def start_rendering(self) -> None:
        """Give this thread a new allowance of processor time, from its first look at the clock."""
        self._rendering.ticks = 0

    def tick(self) -> None:
        """Count one loop step, call or operator of a template.

        Raises:
            InvalidArgument: The allowance is used up.
        """
        rendering = self._rendering
        rendering.ticks += 1
        if rendering.ticks % _TICKS:
            return
        now_s = time.thread_time()
        if rendering.ticks == _TICKS:
            rendering.deadline_s = now_s + self._limit_s
        elif now_s > rendering.deadline_s:
            raise InvalidArgument(f"the chat template took more than {self._limit_s:g} s of processor time")

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        template = Parser(self, source, name, filename).parse()
        for loop in template.find_all(nodes.For):
            tick = nodes.Call(nodes.EnvironmentAttribute("tick"), [], [], None, None)
            loop.body.insert(0, nodes.ExprStmt(tick).set_lineno(loop.lineno))
        template.set_environment(self)
        return template

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        """Call an object for the template."""
        __self.tick()
        return super().call(__context, __obj, *args, **kwargs)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Apply an operator for the template."""
        self.tick()
        _check_growth(operator, left, right)
        return super().call_binop(context, operator, left, right)

    def getattr(self, obj: Any, attribute: str) -> Any:
        """Look up `obj.attribute` for the template."""
        if type(obj) is dict and attribute in obj and attribute not in _NAMES_OF_DICT:
            return obj[attribute]  # as would be found in the end; messages and tools are full of these
        if isinstance(obj, str):
            if attribute in _GROWING_METHODS:
                raise SecurityError(f"the method {attribute!r} of text is not available to templates")
            if attribute in ("replace", "join") and not isinstance(obj, Written):
                obj = Written(obj)
        elif isinstance(obj, int | float):
            return self.undefined(obj=obj, name=attribute)
        return super().getattr(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        """Look up `obj[argument]` for the template."""
        try:
            return obj[argument]
        except (TypeError, LookupError):
            if isinstance(argument, str):
                return self.getattr(obj, str.__str__(argument))
        return self.undefined(obj=obj, name=argument)

    def _join(self, value: Iterable[Any], d: str = "", attribute: str | int | None = None) -> Written:
        parts = (self.getitem(part, attribute) if attribute is not None else part for part in value)
        return Written(d).join(map(str, parts)) if not isinstance(d, Written) else d.join(map(str, parts))

    def _strftime_now(self, form: str) -> str:
        if len(form) > 100 or not re.fullmatch(r"(?:[^%]|%-?[A-Za-z%])*", form):
            raise InvalidArgument(f"strftime_now: the format {form[:100]!r} is not supported")
        return self._now().strftime(form)


def _raise_exception(message: str) -> NoReturn:
    raise TemplateRefusalError(str.__str__(message))


def _indent(text: str, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    """Jinja's filter of this name, for widths up to 64."""
    step = str.__str__(width)[:64] if isinstance(width, str) else " " * min(int(width), 64)
    check_length(len(text) + len(step) * (text.count("\n") + 1))
    head, *rest = text.splitlines() or [""]
    lines = [step + head if first else head, *(step + line if line or blank else line for line in rest)]
    return "\n".join(lines)


def _check_growth(operator: str, left: Any, right: Any) -> None:
    """Refuse an operation whose result would be huge, before it is computed."""
    if operator == "+" and hasattr(left, "__len__") and hasattr(right, "__len__"):
        _check_size(left, len(left) + len(right))
    elif operator == "%" and isinstance(left, str):
        raise SecurityError("the operator % on text is not available to templates; use ~ or +")
    elif operator == "*":
        for sized, times in ((left, right), (right, left)):
            if hasattr(sized, "__len__") and isinstance(times, int):
                _check_size(sized, len(sized) * times)
        if (
            isinstance(left, int)
            and isinstance(right, int)
            and left.bit_length() + right.bit_length() > _MAX_INT_BITS
        ):
            raise InvalidArgument("the chat template multiplies numbers that are too large")
    elif (
        operator == "**"
        and isinstance(left, int)
        and isinstance(right, int)
        and left.bit_length() * abs(right) > _MAX_INT_BITS
    ):
        raise InvalidArgument("the chat template raises a number to a power that is too large")


def _check_size(like: Any, n: int) -> None:
    if isinstance(like, str):
        check_length(n)
    elif n > _MAX_ITEMS:
        raise InvalidArgument(f"the chat template would make a list of {n} items, the limit is {_MAX_ITEMS}")
