"""The gate before every route that needs a credential: who calls, whether they may, and whether there is room.

Rules kept here: whoever passes has a name. What costs least is asked first: writes are refused while those before them
do not get through to the store; requests are counted before their credential is checked, and be it a signature that
only the handler can check; only then does the store learn whom it answers. Whoever may only glance passes where a route
says what is left of its answer then, and gets no other answer than that.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from typing import Protocol

from starlette.requests import Request

from perdure.core.behalf import answer_to
from perdure.errors import NotAllowed, Unauthenticated
from perdure.http.caller import ANYBODY, Caller
from perdure.http.rates import Pace, Rates, Sort, read_paces
from perdure.http.route import Answer, Route
from perdure.runtime.app import Perdure


class Asks(Protocol):
    """Says who calls, or raises."""

    async def caller(self, headers: Mapping[str, str]) -> Caller: ...


class Gate:
    def __init__(self, app: Perdure, asks: Asks) -> None:
        usual = Pace(app.settings.api_rate, app.settings.api_burst)
        self._app = app
        self._asks = asks
        strangers = Pace(app.settings.api_strangers, app.settings.api_strangers_burst)
        self._rates = Rates(usual, read_paces(app.settings.api_rates, usual), strangers=strangers)

    async def passed(self, request: Request, route: Route) -> Caller:
        """Whoever may do this, now."""
        if route.scope is None:
            if _proves_itself(route):
                self._app.refuse_crowd()
                self._rates.admit("", _address(request), "writes")
            return ANYBODY
        sort: Sort = "reads" if route.method == "GET" else "writes"
        if sort == "writes":
            self._app.refuse_crowd()
        caller = await self._counted(request, sort)
        if not _glances(caller, route):
            caller.require(route.scope)
        answer_to(caller.tenant, caller.named)
        return caller

    async def served(self, request: Request, route: Route, caller: Caller, doing: Awaitable[Answer]) -> Answer:
        """What it comes to. A request whose signature is good does not count for its address, whatever that is."""
        good = _proves_itself(route)
        try:
            return _shown(caller, route, await doing)
        except Unauthenticated:
            good = False
            raise
        finally:
            if good:
                self._rates.give_back(_address(request))

    async def _counted(self, request: Request, sort: Sort) -> Caller:
        credential = request.headers.get("authorization", "")
        address = _address(request)
        counted = self._rates.admit(credential, address, sort)
        try:
            caller = await self._asks.caller(request.headers)
            if not caller.user:  # what it does would be written down as nobody's
                raise Unauthenticated("the credential does not say who calls: take one that names a user")
        except Unauthenticated:
            self._rates.forget(credential)
            raise
        if not counted:
            self._rates.proven(credential, address, caller.tenant, sort)
        return caller


def _glances(caller: Caller, route: Route) -> bool:
    """Whether the answer is for somebody who may see that things are, but not what is in them."""
    return route.glance is not None and caller.may("glance") and not (route.scope and caller.may(route.scope))


def _shown(caller: Caller, route: Route, answer: Answer) -> Answer:
    """The part of an answer that is for this caller. What a route answers in another form is never for a glance."""
    if route.glance is None or not _glances(caller, route):
        return answer if answer.form is None else answer.form(answer.data)
    if type(answer.data) is not route.answers.get(answer.status):
        raise NotAllowed(f"{caller.user or 'this caller'} may only glance: this answer cannot be had without its data")
    seen = route.glance(answer.data)
    return Answer(seen, answer.status) if answer.form is None else answer.form(seen)


def _proves_itself(route: Route) -> bool:
    """Whether it needs no credential in the headers, but writes: its body is signed."""
    return route.scope is None and route.method != "GET"


def _address(request: Request) -> str:
    return request.client.host if request.client is not None else ""
