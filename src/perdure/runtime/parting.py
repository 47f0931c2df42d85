"""Many in one write, of which one may spoil it: those beside it are written all the same.

Rules kept here: what is wrong with one is told by the type of the error (`REFUSALS`), and nothing was written then; so
the same is asked of each half, until the one stands alone. An error that says anything else is the answer for all that
were in that call, and what was to be asked after it is not asked any more.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import TypeVar

from perdure.errors import REFUSALS, StoreUnavailable

Q = TypeVar("Q")
A = TypeVar("A")


async def in_parts(
    write: Callable[[Sequence[Q]], Awaitable[Sequence[A]]], items: Sequence[Q]
) -> AsyncIterator[list[A | Exception]]:
    """The answers in order, as they come; an error is that of one item, or of all that were written together."""
    parts = [items]
    while parts:
        part = parts.pop()
        try:
            answers = await write(part)
        except REFUSALS as error:
            if len(part) > 1:
                half = len(part) // 2
                parts += [part[half:], part[:half]]
            else:
                yield [error]
        except Exception as error:
            yield [error] * len(part)
            for rest in reversed(parts):
                text = f"nothing of this was written, for what was to be written before it failed: {error}; try again"
                yield [StoreUnavailable(text)] * len(rest)
            return
        else:
            yield list(answers)
