"""How texts name what was asked for: as an argument of `Engine`, or as a flag of the command line."""

from __future__ import annotations

import re
from dataclasses import dataclass

_UNITS = re.compile("_(gib|ms)$")  # flags have none


@dataclass(frozen=True)
class Names:
    """Writes the names of arguments.

    Attributes:
        flags: As the command line has them.
    """

    flags: bool = False

    def name(self, argument: str) -> str:
        """Write an argument of `Engine` without a value: `round_rows`, or `--round-rows`."""
        return f"--{_UNITS.sub('', argument).replace('_', '-')}" if self.flags else argument

    def change(self, argument: str, value: float | str) -> str:
        """Write an argument with its value: `context=1024`, or `--context 1024`."""
        number = f"{value:.10g}" if isinstance(value, float) else str(value)
        if self.flags:
            return f"{self.name(argument)} {number}"
        return f"{argument}={value!r}" if isinstance(value, str) else f"{argument}={number}"

    def without(self, argument: str) -> str:
        """Write how a part is left out: `vision=False`, or `--no-vision`."""
        return f"--no-{argument.replace('_', '-')}" if self.flags else f"{argument}=False"


ARGUMENTS, FLAGS = Names(), Names(flags=True)
