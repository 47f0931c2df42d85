"""The jq language, bounded: expressions of strangers, inside a deterministic turn.

An expression is compiled once (`compile`) and evaluated on plain JSON values (`Program.one`, `true`, `each`). It reads
its input and its variables, nothing else: no clock, no environment, no files, no other inputs. What it may use is
limited (`Limits`) in steps, depth and size, and counted so that it stops at the same place on every machine. Inputs are
never changed; outputs may share parts with them.

It is jq 1.8, with these differences, on purpose:

- Integers keep their digits: they are exact within 64 bits, where jq rounds to floats beyond 2^53. There is no `-0`
  among them. Text shows numbers in their shortest form, not as they were written (`1e3` is `1000`, `1.50` is `1.5`).
- Regular expressions are Python's, looked at before use (`regex`); no `\\p{…}`, no sets in sets, no flag `l`.
- A path leads into the input. jq also takes for one what is made anew but happens to be the same, as in `path(. = .)`.
- Dates are UTC and English, years 1 to 9999.
- What is not the same everywhere, or would reach out, is refused when an expression is compiled (`calls.BANNED`).
- Messages of errors may differ from jq's. Values nested deeper than 100 levels are refused where they are walked
  through and as outputs.
- In addition: `ascii`, `date`, `leaf_paths`, `toarray`, `@base32`, `@base32d`. Left out: Bessel functions.
"""

from perdure.core.jq.limits import Limits
from perdure.core.jq.program import Program, compile  # noqa: A004 - as in `re`
from perdure.core.jq.template import Template, expression, is_expression

__all__ = ["Limits", "Program", "Template", "compile", "expression", "is_expression"]
