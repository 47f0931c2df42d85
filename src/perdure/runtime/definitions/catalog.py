"""What was published for a tenant, all of it: read once, and again only when something was published since.

Rules kept here: whether anything was written is asked of the store every time, for an event must not miss a definition
that was published before it came; it is asked before the definitions are read, so what is written meanwhile is seen by
the next look. What is kept may vanish at any time.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from types import MappingProxyType

from msgspec import structs

from perdure.core.records import Query, id_of
from perdure.ports import Store
from perdure.runtime.callers.showing import whole
from perdure.runtime.definitions.published import DEFINITION, Ref, index_of

#: Definitions that are asked for at once.
PAGE = 1000
#: Tenants whose definitions are kept in mind.
_KEPT = 100


class Catalog:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._kept: OrderedDict[str, tuple[tuple[int, int], Mapping[Ref, bool]]] = OrderedDict()

    async def of(self, tenant: str) -> Mapping[Ref, bool]:
        """Every version that was published, and whether a start by name takes it; the same object while it is so."""
        extent = await self._store.extent(tenant, DEFINITION)
        kept = self._kept.get(tenant)
        if kept is None or kept[0] != extent:
            kept = extent, MappingProxyType(await self._read(tenant) if extent[0] else {})
            self._kept[tenant] = kept
        self._kept.move_to_end(tenant)
        while len(self._kept) > _KEPT:
            self._kept.popitem(last=False)
        return kept[1]

    async def _read(self, tenant: str) -> dict[Ref, bool]:
        found: dict[Ref, bool] = {}
        query = Query(tenant, workflow=DEFINITION, limit=PAGE)
        while heads := await self._store.find(query):
            for head in heads:
                index = index_of(await whole(self._store, head))
                name = id_of(head.key).removeprefix("definition/")
                for one in index.versions:
                    found[Ref(tenant, name, one.version, one.hash)] = one is index.newest
            query = structs.replace(query, cursor=(heads[-1].started_at, heads[-1].key))
            if len(heads) < PAGE:
                break
        return found
