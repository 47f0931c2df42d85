"""Correlation ids and tags: kept in the log, inherited, copied, and found again on every store."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from perdure import ExecutionExists, ExecutionFailed, Perdure, event, workflow
from perdure.core import copies, events as ev
from perdure.errors import UsageError
from perdure.runtime.run import Run
from perdure.runtime.sealing.keyring import DirectoryRing
from perdure.testing import World


@workflow
async def labelled_leaf(n: int) -> int:
    return n


@workflow
async def labelled_family(rounds: int) -> int:
    await labelled_leaf(rounds)
    if rounds:
        return workflow.restart_with(rounds - 1)
    return 7


@workflow
async def labelled_failing() -> None:
    raise ValueError("no")


@workflow
async def labelled_waiting() -> Any:
    return await event("go")


async def found(app: Perdure, **asked: Any) -> list[str]:
    return [head.key.partition("/")[2] for head in (await app.find(**asked)).heads]


async def labels_of(run: Run[Any]) -> tuple[str | None, tuple[str, ...]]:
    head = await run.head()
    return head.correlation, head.tags


def test_executions_are_found_by_correlation_id_and_tags() -> None:
    async def main() -> None:
        async with Perdure("memory://") as app:
            await app.start(labelled_leaf, 1, id="a", correlation="order-4711", tags=["vip", "eu"])
            await app.start_by_name("labelled_leaf", [1], id="b", correlation="order-4711", tags=["eu"])
            await app.start(labelled_leaf, 1, id="c", tags=["eu"])
            assert await found(app, correlation="order-4711") == ["b", "a"]
            assert await found(app, tag="eu") == ["c", "b", "a"]
            assert await found(app, tag=["eu", "vip"], correlation="order-4711") == ["a"]
            assert await found(app, correlation="order-4711", tenant="other") == []
            assert await labels_of(app.get("a")) == ("order-4711", ("eu", "vip"))

    asyncio.run(main())


def test_they_are_in_the_first_event_of_the_log() -> None:
    async def main() -> ev.Event:
        async with Perdure("memory://") as app:
            run = await app.start(labelled_leaf, 1, correlation="x", tags=["b", "a", "b"])
            return ev.read((await app.store.read(run.key))[0])

    first = asyncio.run(main())
    assert isinstance(first, ev.Started)
    assert (first.correlation, first.tags) == ("x", ("a", "b"))


def test_an_execution_without_labels_writes_nothing_of_them() -> None:
    async def main() -> bytes:
        async with Perdure("memory://") as app:
            run = await app.start(labelled_leaf, 1)
            return (await app.store.read(run.key))[0].data

    data = asyncio.run(main())
    assert b"correlation" not in data and b"tags" not in data


def test_a_page_by_label_leads_to_the_next() -> None:
    async def main() -> None:
        async with Perdure("memory://") as app:
            for number in range(5):
                await app.start(labelled_leaf, 1, id=f"n{number}", tags=["t"])
            page = await app.find(tag="t", limit=2)
            keys = [head.key for head in page.heads]
            while page.next is not None:
                page = await app.find(tag="t", limit=2, cursor=page.next)
                keys += [head.key for head in page.heads]
            assert keys == [f"default/n{number}" for number in (4, 3, 2, 1, 0)]

    asyncio.run(main())


async def test_children_inherit_the_correlation_id_and_not_the_tags_also_after_a_restart(world: World) -> None:
    app = world.app
    run = await app.start(labelled_family, 2, id="p", correlation="x", tags=["t"])
    assert await run.result() == 7
    assert await labels_of(run) == ("x", ("t",))
    about = {head.key: (head.correlation, head.tags) for head in (await app.find(parent="p")).heads}
    assert len(about) == 3 and set(about.values()) == {("x", ())}
    assert len(await found(app, correlation="x")) == 4
    assert await found(app, tag="t") == ["p"]


async def test_a_retry_keeps_both(world: World) -> None:
    app = world.app
    run = await app.start(labelled_failing, correlation="x", tags=["t"])
    with pytest.raises(ExecutionFailed):
        await run.result()
    again = await run.retry()
    assert again.id != run.id
    assert await labels_of(again) == ("x", ("t",))
    assert await found(app, correlation="x", tag="t") == [again.id, run.id]


def test_a_fork_keeps_both() -> None:
    async def main() -> None:
        async with Perdure("memory://") as app:
            run = await app.start(labelled_waiting, correlation="x", tags=["t"])
            fork = await run.fork()
            assert await labels_of(fork) == ("x", ("t",))

    asyncio.run(main())


def test_an_exported_log_keeps_both_when_it_is_imported() -> None:
    async def main() -> None:
        async with Perdure("memory://") as app, Perdure("memory://") as other:
            run = await app.start(labelled_waiting, id="a", correlation="x", tags=["t"])
            document = copies.export(run.key, "default", [row async for row in run.rows()])
            queue, rows = copies.restore(msgspec.json.decode(msgspec.json.encode(document)))
            await other.adopt(rows, "b", queue)
            assert await found(other, correlation="x", tag="t") == ["b"]

    asyncio.run(main())


def test_an_import_with_a_label_that_no_start_takes_is_refused() -> None:
    async def main() -> None:
        async with Perdure("memory://") as app:
            first = ev.Started("labelled_waiting", 1, msgspec.Raw(b"[]"), correlation="a\nb")
            with pytest.raises(UsageError, match="correlation id"):
                await app.adopt([ev.row(first, 1, 0)], "b")

    asyncio.run(main())


def test_the_same_start_again_is_the_same_only_with_the_same_labels() -> None:
    async def main() -> None:
        async with Perdure("memory://") as app:
            await app.start(labelled_leaf, 1, id="a", correlation="x", tags=["b", "c"])
            await app.start(labelled_leaf, 1, id="a", correlation="x", tags=["c", "b", "b"])
            for other in ({}, {"correlation": "y", "tags": ["b", "c"]}, {"correlation": "x"}):
                with pytest.raises(ExecutionExists, match="correlation id or tags"):
                    await app.start(labelled_leaf, 1, id="a", **other)  # type: ignore[arg-type]

    asyncio.run(main())


@pytest.mark.parametrize("text", ["", "x" * 201, "a\nb", "a\x00", "\x7f", "\x85", "\ud800"])
def test_a_text_that_cannot_be_a_label_is_refused_before_anything_is_written(text: str) -> None:
    async def main() -> None:
        async with Perdure("memory://") as app:
            for labels in ({"correlation": text}, {"tags": [text]}):
                with pytest.raises(UsageError, match="1 to 200 characters"):
                    await app.start(labelled_leaf, 1, **labels)  # type: ignore[arg-type]
            with pytest.raises(UsageError):
                await app.find(correlation=text)
            with pytest.raises(UsageError):
                await app.find(tag=[text])
            assert (await app.find()).heads == []

    asyncio.run(main())


def test_tags_are_a_list_and_not_too_many() -> None:
    async def main() -> None:
        async with Perdure("memory://") as app:
            with pytest.raises(UsageError, match=r"tags=\['eu'\]"):
                await app.start(labelled_leaf, 1, tags="eu")
            with pytest.raises(UsageError, match="at most 20"):
                await app.start(labelled_leaf, 1, tags=[str(number) for number in range(21)])

    asyncio.run(main())


def test_a_published_field_of_the_same_name_is_still_found() -> None:
    async def main() -> None:
        async with Perdure("memory://") as app:
            assert await found(app, published={"tag": "x", "correlation": "y"}) == []

    asyncio.run(main())


def test_labels_are_searched_also_where_everything_else_is_encrypted(tmp_path: Path) -> None:
    DirectoryRing.create(str(tmp_path / "keys"))

    async def main() -> None:
        async with Perdure(f"sqlite:///{tmp_path}/s.db", keyring=str(tmp_path / "keys")) as app:
            run = await app.start(labelled_leaf, 1, id="a", correlation="order-4711", tags=["vip"])
            assert await found(app, correlation="order-4711", tag="vip") == ["a"]
            assert await labels_of(run) == ("order-4711", ("vip",))
            with pytest.raises(ExecutionExists):
                await app.start(labelled_leaf, 1, id="a", correlation="order-4712")

    asyncio.run(main())


async def test_a_bulk_operation_goes_by_labels(world: World) -> None:
    app = world.app
    for id, about, tags in (("a", "x", ["t"]), ("b", "x", []), ("c", "y", ["t"])):
        await app.start(labelled_waiting, id=id, correlation=about, tags=tags)
    operation = await app.bulk.start("cancel", correlation="x", tag="t")
    await operation.result()
    told = await app.bulk.get(operation.id)
    assert (told.found, told.done, told.first) == (1, 1, ["a"])
