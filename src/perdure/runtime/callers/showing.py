"""What an execution publishes at this moment.

Its head shows that from when it last came to rest. One that a worker holds, and that is busy or wakes again soon, may
have published something since: then its log has it, near the end. A search shows what cannot be decrypted without its
state, lest it fail its neighbours; a list of things that consist of their state has to say so.
"""

from __future__ import annotations

from perdure.core import events as ev
from perdure.core.records import Head
from perdure.ports import Store

_PUBLISHED = ev.NUMBERS[ev.Published]
#: Rows at the end of a log that are looked at: those of several steps of the engine's own workflows.
TAIL = 100


async def shown(store: Store, head: Head) -> bytes:
    """The published state as JSON."""
    if head.holder is not None:
        for row in reversed(await store.read(head.key, max(0, head.version - TAIL))):
            if row.type % 1000 == _PUBLISHED and isinstance(event := ev.read(row), ev.Published):
                return bytes(event.state)
    return (await whole(store, head)).state or b"{}"


async def whole(store: Store, head: Head) -> Head:
    """What a search found, if all of it could be read; or the error that says why it could not."""
    return head if head.state is not None else await store.head(head.key) or head
