"""Encryption of what is stored: inputs, results, events, states and mail are sealed before they leave the process.

A key ring has a key for each tenant; whoever destroys it makes all that this tenant ever wrote unreadable. The store,
the stream and the shared cache get and give sealed bytes and know nothing of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from perdure.errors import SettingsError
from perdure.ports import KeyRing, Store, Stream

if TYPE_CHECKING:
    from perdure.runtime.callers.states import Cache
    from perdure.runtime.settings import Settings

Backend: TypeAlias = "tuple[Store, Stream, Cache | None]"


def sealed(settings: Settings, ring: KeyRing | None, store: Store, stream: Stream, warm: Cache | None) -> Backend:
    """The same three, sealed if the settings or the caller name a key ring."""
    if ring is None and not settings.keyring:
        return store, stream, warm
    try:
        from perdure.runtime.sealing.keyring import DirectoryRing
        from perdure.runtime.sealing.seals import Seals
    except ImportError as error:
        raise SettingsError("a key ring needs the extra: pip install 'perdure[encryption]'") from error
    from perdure.runtime.sealing.store import sealed_store
    from perdure.runtime.sealing.stream import SealedCache, SealedStream

    found = ring or DirectoryRing(settings.keyring, settings.keyring_masters)
    seals = Seals(found, frozenset(name.strip() for name in settings.searchable.split(",") if name.strip()))
    return sealed_store(store, seals), SealedStream(stream, seals), warm and SealedCache(warm, seals)
