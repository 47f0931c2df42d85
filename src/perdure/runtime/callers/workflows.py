"""Which workflow is meant: by whoever starts one, and by the log of an execution.

Rules kept here: the code of this process comes before what was published; an execution of code never changes its
version, so its workflow is asked for once; one of a published definition may, so what is in mind is only a first guess.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Any

from perdure.core.records import PUBLISHED, Head, definition_of
from perdure.core.view import State
from perdure.errors import KeyringError, NotRegistered, UsageError
from perdure.flows.described import Described
from perdure.flows.registry import near, registry, wanted
from perdure.flows.workflow import Workflow
from perdure.ports import Store
from perdure.runtime.definitions.catalog import Catalog
from perdure.runtime.definitions.published import Published, ref_in, ref_of

#: Executions whose workflow is kept in mind.
_REMEMBERED = 10_000


class Workflows:
    """`open` connects, if that has not happened yet: only what was published needs the store."""

    def __init__(
        self,
        store: Store,
        published: Published,
        catalog: Catalog,
        open: Callable[[], Awaitable[None]],
    ) -> None:
        self._store = store
        self._catalog = catalog
        self._published = published
        self._open = open
        self._known: OrderedDict[str, str] = OrderedDict()
        self._checkpoints: OrderedDict[tuple[str, int], str] = OrderedDict()

    async def wanted(self, workflow: Any, version: int | str | None, tenant: str) -> Workflow[..., Any]:
        """The workflow itself, or that of a name: in this process, or else published."""
        if isinstance(workflow, Workflow):
            if version not in (None, workflow.version):
                raise UsageError(f"{workflow.definition} is given, but version {version} is asked for: give its name")
            found: Workflow[..., Any] = workflow
            return found
        if not isinstance(workflow, str):
            raise UsageError("start() takes a workflow: decorate the function with @workflow; or a name")
        try:
            return registry.workflow(workflow, version)
        except NotRegistered:
            await self._open()
            if (published := await self._published.named(tenant, workflow, version)) is None:
                raise await self._unknown(workflow, version, tenant) from None
            return published

    async def _unknown(self, name: str, version: int | str | None, tenant: str) -> NotRegistered:
        """What there is instead, in the code and of this tenant's own."""
        versions = [f"{one.name}@{one.version}" for one in registry.workflows()]
        versions += [str(ref) for ref in await self._catalog.of(tenant)]
        return NotRegistered(
            f"this process has no workflow {wanted(name, version)}, and no such definition was published for tenant"
            f" {tenant!r}{near(name, versions)}"
        )

    async def definition(self, key: str) -> str:
        """Which workflow an execution runs, as far as that is in mind, or else now; empty if there is none."""
        if (known := self._known.get(key)) is not None:
            return known
        head = await self._store.head(key)
        if head is None:
            return ""
        self.remember(key, head.definition)
        return head.definition

    async def current(self, key: str, definition: str) -> str:
        """What was published may have been replaced by another version since it began."""
        if not definition.startswith(PUBLISHED) or (head := await self._store.head(key)) is None:
            return definition
        return await self.running(head)

    async def running(self, head: Head) -> str:
        """The version of now. A head tells where the newest checkpoint is, and only there a version can change: however
        long the log is, one row of it is read, and once."""
        if head.base == 1 or not head.definition.startswith(PUBLISHED):
            return head.definition
        place = head.key, head.base
        if (known := self._checkpoints.get(place)) is not None:
            return known
        try:
            ref = ref_in(head.key, await self._store.read(head.key, head.base - 1, head.base, 1))
        except KeyringError:
            ref = None  # one that cannot be read must not fail its neighbours in a list
        if ref is None:
            return head.definition
        known = self._checkpoints[place] = definition_of(ref.name, ref.version, ref.hash)
        while len(self._checkpoints) > _REMEMBERED:
            self._checkpoints.popitem(last=False)
        return known

    async def declared(self, key: str, definition: str) -> Workflow[..., Any] | None:
        """The workflow of a definition, if this process has it or can read it."""
        if not definition.startswith(PUBLISHED):
            return registry.find(definition)
        return await self._published.one(ref_of(key, definition))

    async def described(self, key: str, state: State) -> Described:
        """The definition of an execution, if it is data."""
        found = await self.declared(key, state.definition)
        if not isinstance(found, Described):
            raise UsageError(f"{key} is of {state.definition or 'no workflow'}, which is code: only data can be drawn")
        return found

    def remember(self, key: str, definition: str) -> None:
        if len(self._known) >= _REMEMBERED:
            self._known.popitem(last=False)
        self._known[key] = definition
