"""Fan-out: one action for each item of a list, a few at a time, and some of them fail.

To run it: python examples/fanout.py [sqlite:///pages.db]
"""

import asyncio
import sys
from dataclasses import dataclass
from tempfile import TemporaryDirectory

from perdure import ActionFailed, Perdure, Retry, action, workflow


@dataclass
class Report:
    words: dict[str, int]
    failed: dict[str, str]


class NotFound(Exception):
    pass


# Three tries with short pauses. A page that is not there will not be there in a second either: fatal.
@action(retries=Retry(attempts=3, first="50ms", fatal=(NotFound,)), timeout="5s")
async def count_words(page: str) -> int:
    await asyncio.sleep(0.05)  # outside of workflows this is the ordinary sleep
    if "missing" in page:
        raise NotFound(page)
    if "flaky" in page and action.attempt < 3:
        raise ConnectionError("the server closed the connection")
    return len(page) * 100


@workflow
async def survey(pages: list[str], at_once: int = 3) -> Report:
    # An ordinary semaphore limits how many actions of this run are open at the same time.
    room = asyncio.Semaphore(at_once)

    async def one(page: str) -> int:
        async with room:
            return await count_words(page)

    # One failure must not lose the rest, so failures come back as values.
    results = await asyncio.gather(*map(one, pages), return_exceptions=True)
    report = Report({}, {})
    for page, result in zip(pages, results, strict=True):
        if isinstance(result, ActionFailed):
            report.failed[page] = f"{result.type} after {result.attempts} attempt(s)"
        elif isinstance(result, BaseException):
            raise result
        else:
            report.words[page] = result
    return report


async def main(store: str) -> None:
    pages = [f"page-{number}" for number in range(8)] + ["flaky-page", "missing-page"]
    async with Perdure(store) as app, app.working():
        run = await app.start(survey, pages, id="survey-1")
        report = await run.result()
        for page, words in report.words.items():
            print(f"  {page:<14} {words} words")
        for page, reason in report.failed.items():
            print(f"  {page:<14} {reason}")
        # Each action is one row of the log; a retry adds one row for the failed attempt.
        print(f"  {len(pages)} pages, {len(await run.log())} events in the log")


if __name__ == "__main__":
    with TemporaryDirectory() as folder:
        asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else f"sqlite:///{folder}/pages.db"))
