"""What the caller's tenant may have running, and has.

To change it is for whoever runs the deployment, not for callers: there is no route for it.
"""

from __future__ import annotations

from msgspec import Struct

from perdure.http.route import Answer, Call, Nothing, Routes

routes = Routes("quota")


class RunningOut(Struct, frozen=True):
    """Executions that have begun and not ended, without children; at most `most` may. None: any number."""

    now: int
    most: int | None


class QuotaOut(Struct, frozen=True):
    suspended: bool
    running: RunningOut


@routes("GET", "/v1/quota", "read", answers={200: QuotaOut})
async def get_quota(call: Call[Nothing, Nothing]) -> Answer:
    """Tell what your tenant may have running, and has.

    At its quota, new executions wait until others end. A tenant that is suspended waits as a whole. Nothing is lost.
    """
    found = await call.app.tenants.quota(call.tenant)
    return Answer(QuotaOut(found.suspended, RunningOut(found.running, found.most)))
