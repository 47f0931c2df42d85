"""Child workflows: called and awaited like functions, or started and left alone.

To run it: python examples/children.py [sqlite:///children.db]
"""

import asyncio
import sys
from tempfile import TemporaryDirectory

from perdure import ChildFailed, Perdure, action, workflow


@action(retries=2)
async def render(chapter: str) -> str:
    return chapter.upper()


@action
async def put_on_shelf(title: str) -> None:
    print(f"  {title} is on the shelf")


@workflow
async def typeset(chapter: str) -> str:
    """A child: an execution of its own, with its own log, its own id and its own undos."""
    if not chapter:
        raise ValueError("an empty chapter")
    return await render(chapter)


@workflow
async def archive(title: str) -> None:
    """Started without waiting: it lives on when its starter has ended."""
    await asyncio.sleep(0.2)
    await put_on_shelf(title)


@workflow
async def book(title: str, chapters: list[str]) -> list[str]:
    # Calling a workflow inside a workflow makes a child; gather, TaskGroup and wait take it like any coroutine.
    done = await asyncio.gather(*map(typeset, chapters), return_exceptions=True)
    ready = [chapter for chapter in done if isinstance(chapter, str)]
    for failure in done:
        if isinstance(failure, ChildFailed):
            workflow.log.warning("left out: %s (%s)", failure, failure.type)
    # A detached execution gets an id of its own, so that others can find it.
    await workflow.start(archive, title, id=f"archive-{workflow.id}")
    return ready


async def main(store: str) -> None:
    async with Perdure(store) as app, app.working():
        run = await app.start(book, "Durable Tales", ["one", "two", "", "three"], id="book-1")
        print(f"  {await run.result()}")
        page = await app.find(parent="book-1")
        for head in sorted(page.heads, key=lambda head: head.key):
            print(f"  child {head.key}: {head.shown}")
        # The detached one is nobody's child; it may still be running.
        await app.get("archive-book-1").result(timeout="10s")


if __name__ == "__main__":
    with TemporaryDirectory() as folder:
        asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else f"sqlite:///{folder}/children.db"))
