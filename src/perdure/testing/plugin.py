"""The pytest plugin: the `world` fixture, and coroutine tests in virtual time.

A coroutine test is run here only if it asks for it: by the `world` fixture, by `@pytest.mark.virtual_time` or by
`@pytest.mark.real_time`. All others are left to whoever runs them now, so this lives beside pytest-asyncio and anyio.
Loading it costs nothing: everything else is imported by the first test that needs it.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Coroutine, Generator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from perdure.testing.world import World

MARKERS = (
    "virtual_time(seed=None): run this coroutine test in virtual time, in an order drawn from the seed",
    "real_time: run this coroutine test with asyncio.run",
    "world(**options): how to make the world of this test, for example world(workers=2, lease='5s')",
)


def pytest_configure(config: pytest.Config) -> None:
    for marker in MARKERS:
        config.addinivalue_line("markers", marker)


@pytest.fixture
def world(request: pytest.FixtureRequest) -> World:
    """A world for this test: a store, a client and a worker in virtual time. It opens and closes around the test."""
    from perdure.testing.world import World

    if _body(request.node) is None:
        raise pytest.UsageError("the `world` fixture is for coroutine tests: write `async def test_…(world)`")
    marker = request.node.get_closest_marker("world")
    return World(**(marker.kwargs if marker is not None else {}))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    body = _body(pyfuncitem) if _wanted(pyfuncitem) else None
    if body is None:
        return (yield)
    # Whoever else runs coroutine tests sees a plain function here.
    before = pyfuncitem.obj
    pyfuncitem.obj = functools.partial(_run, pyfuncitem, body)
    try:
        return (yield)
    finally:
        pyfuncitem.obj = before


def _wanted(item: pytest.Function) -> bool:
    names = ("virtual_time", "real_time")
    return "world" in item.fixturenames or any(item.get_closest_marker(name) is not None for name in names)


def _body(item: Any) -> Callable[..., Coroutine[Any, Any, None]] | None:
    """The coroutine function of a test, also behind the wrapper of another plugin."""
    function = getattr(item, "obj", None)
    while function is not None and not inspect.iscoroutinefunction(function):
        function = getattr(function, "__wrapped__", None)
    return function


def _run(item: pytest.Function, body: Callable[..., Coroutine[Any, Any, None]], /, **arguments: Any) -> None:
    import asyncio

    from perdure.testing.clock import run

    if item.get_closest_marker("real_time") is not None:
        if "world" in item.fixturenames:
            raise pytest.UsageError("a world lives in virtual time: the test cannot be marked real_time")
        asyncio.run(body(**arguments))
        return
    marker = item.get_closest_marker("virtual_time")
    options = dict(marker.kwargs) if marker is not None else {}
    run(_inside(item.funcargs.get("world"), body, arguments), **options)


async def _inside(world: Any, body: Callable[..., Coroutine[Any, Any, None]], arguments: dict[str, Any]) -> None:
    if world is None:
        await body(**arguments)
        return
    async with world:
        await body(**arguments)
