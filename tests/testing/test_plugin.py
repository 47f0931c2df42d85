"""The pytest plugin, tried in projects of its own."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import pytest

pytest_plugins = ["pytester"]

WORKFLOW = """
    import asyncio
    import pytest
    from perdure import workflow

    @workflow
    async def nap(days: int) -> int:
        await asyncio.sleep(days * 24 * 3600)
        return days
"""


def test_a_test_with_a_world_runs_in_virtual_time(pytester: pytest.Pytester):
    pytester.makepyfile(
        WORKFLOW
        + """
    async def test_nap(world):
        assert await world.run(nap, 30) == 30
        assert world.now().isoformat() == "2030-01-31T00:00:00+00:00"

    class TestInAClass:
        async def test_nap(self, world, tmp_path):
            assert await world.run(nap, 1) == 1
    """
    )
    pytester.runpytest_subprocess("-p", "no:asyncio", "-W", "error").assert_outcomes(passed=2)


def test_options_of_the_world_come_from_a_marker(pytester: pytest.Pytester):
    pytester.makepyfile(
        WORKFLOW
        + """
    @pytest.mark.world(workers=3, lease="5s")
    async def test_nap(world):
        assert len(world.workers) == 3
        assert world.settings.lease == 5
    """
    )
    pytester.runpytest_subprocess("--strict-markers").assert_outcomes(passed=1)


def test_the_markers_choose_the_loop(pytester: pytest.Pytester):
    pytester.makepyfile(
        """
        import asyncio, pytest
        from perdure.testing import VirtualLoop

        @pytest.mark.virtual_time
        async def test_virtual():
            await asyncio.sleep(1e6)

        @pytest.mark.virtual_time(seed=3)
        async def test_seeded():
            assert isinstance(asyncio.get_running_loop(), VirtualLoop)

        @pytest.mark.real_time
        async def test_real():
            assert not isinstance(asyncio.get_running_loop(), VirtualLoop)
        """
    )
    pytester.runpytest_subprocess("--strict-markers").assert_outcomes(passed=3)


def test_a_failing_test_fails(pytester: pytest.Pytester):
    pytester.makepyfile(
        WORKFLOW
        + """
    async def test_nap(world):
        assert await world.run(nap, 1) == 2
    """
    )
    result = pytester.runpytest_subprocess("-p", "no:asyncio", "-W", "error")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*assert 1 == 2*"])


def test_other_coroutine_tests_are_left_alone(pytester: pytest.Pytester):
    pytester.makepyfile("async def test_of_somebody_else(): pass")
    result = pytester.runpytest_subprocess("-p", "no:anyio", "-p", "no:asyncio")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*async def functions are not natively supported*"])


def test_the_world_is_for_coroutine_tests(pytester: pytest.Pytester):
    pytester.makepyfile("def test_plain(world): pass")
    result = pytester.runpytest_subprocess()
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*write `async def test_*"])


@pytest.mark.parametrize("mode", ["strict", "auto"])
def test_it_lives_beside_pytest_asyncio(pytester: pytest.Pytester, mode: str):
    if importlib.util.find_spec("pytest_asyncio") is None:
        pytest.skip("pytest-asyncio is not installed")
    pytester.makepyfile(
        WORKFLOW
        + """
    async def test_nap(world):
        assert await world.run(nap, 30) == 30

    @pytest.mark.asyncio
    async def test_of_pytest_asyncio():
        await asyncio.sleep(0)
    """
    )
    result = pytester.runpytest_subprocess("-o", f"asyncio_mode={mode}")
    result.assert_outcomes(passed=2)


def test_it_lives_beside_anyio(pytester: pytest.Pytester):
    if importlib.util.find_spec("anyio") is None:
        pytest.skip("anyio is not installed")
    pytester.makepyfile(
        WORKFLOW
        + """
    async def test_nap(world):
        assert await world.run(nap, 30) == 30

    @pytest.fixture
    def anyio_backend():
        return "asyncio"

    @pytest.mark.anyio
    async def test_of_anyio():
        await asyncio.sleep(0)
    """
    )
    pytester.runpytest_subprocess().assert_outcomes(passed=2)


def test_loading_the_plugin_imports_none_of_the_tools():
    code = (
        "import sys, pytest, perdure.testing.plugin;"
        "print([name for name in sys.modules if name.startswith('perdure.testing.')])"
    )
    loaded = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert loaded.strip() == "['perdure.testing.plugin']"
