import asyncio, inspect, pytest
import perdure.testing as _t
if not hasattr(_t, "World"): _t.World = object
@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    if inspect.iscoroutinefunction(pyfuncitem.obj) and "world" in pyfuncitem.fixturenames:
        async def main():
            from perdure import Perdure
            class W: pass
            w = W(); w.app = Perdure("memory://", lease=0.5, grace=0.1, replay_always=True)
            w.start = w.app.start
            async with w.app, w.app.working():
                kw = {a: pyfuncitem.funcargs[a] for a in pyfuncitem._fixtureinfo.argnames}
                kw["world"] = w
                async with asyncio.timeout(10): await pyfuncitem.obj(**kw)
        asyncio.run(main()); return True
@pytest.fixture
def world(): return None
