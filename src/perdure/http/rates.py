"""How many requests somebody may send: token buckets, in this process.

A tenant has a bucket for reads and one for writes. Rules kept here: a request is counted before anything is done for
it. To know whose it is takes authentication, which costs something; so a credential that was good before is counted for
its tenant at once, and one that nobody knows yet is counted for the address that it comes from, until it has proven
good. Whatever is remembered has a bound, and forgetting somebody only fills a bucket.
"""

from __future__ import annotations

import ipaddress
import math
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Literal, TypeAlias, TypeVar

from msgspec import Struct

from perdure.errors import SettingsError
from perdure.http.caller import is_tenant
from perdure.http.problems import Refused

K = TypeVar("K")
Sort: TypeAlias = Literal["reads", "writes"]
#: Buckets, and credentials, that a process has in mind.
KEPT = 10_000


class Pace(Struct, frozen=True):
    """`rate` is per second, 0 for no limit; `burst` is how many may come at once."""

    rate: float
    burst: float


class Bucket:
    __slots__ = ("at", "left")

    def __init__(self, left: float, at: float) -> None:
        self.left = left
        self.at = at

    def take(self, pace: Pace, now: float) -> float:
        """0 if there was a token; else the seconds until there is one."""
        self.left = min(pace.burst, self.left + (now - self.at) * pace.rate)
        self.at = now
        if self.left < 1:
            return (1 - self.left) / pace.rate
        self.left -= 1
        return 0.0


class Rates:
    """`strangers` is what an address may try with credentials that nobody knows."""

    def __init__(
        self,
        usual: Pace,
        special: Mapping[str, Pace] | None = None,
        *,
        strangers: Pace,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._usual = usual
        self._special = dict(special or {})
        self._strangers = strangers
        self._clock = clock
        self._tenants: OrderedDict[tuple[str, Sort], Bucket] = OrderedDict()
        self._addresses: OrderedDict[str, Bucket] = OrderedDict()
        self._known: OrderedDict[int, str] = OrderedDict()  # hashes of credentials that were good, and whose they are

    def admit(self, credential: str, address: str, sort: Sort) -> bool:
        """Count a request before it is known whose it is. Gives whether it is counted for its tenant already."""
        tenant = self._known.get(hash(credential))
        if tenant is not None:
            self._count(tenant, sort)
            return True
        if self._strangers.rate <= 0:
            return False
        bucket = self._bucket(self._addresses, _network(address), self._strangers)
        if wait := bucket.take(self._strangers, self._clock()):
            why = "too many requests with credentials that are not known come from this address (api_strangers)"
            raise _refused(why, wait)
        return False

    def proven(self, credential: str, address: str, tenant: str, sort: Sort) -> None:
        """A credential that was not known was good: count the request for its tenant, not for its address."""
        known = hash(credential)
        self._known[known] = tenant
        if len(self._known) > KEPT:
            self._known.popitem(last=False)
        self.give_back(address)
        self._count(tenant, sort)

    def give_back(self, address: str) -> None:
        """A request of this address was a good one."""
        if (bucket := self._addresses.get(_network(address))) is not None:
            bucket.left += 1

    def forget(self, credential: str) -> None:
        """It is not good any more."""
        self._known.pop(hash(credential), None)

    def _count(self, tenant: str, sort: Sort) -> None:
        pace = self._special.get(tenant, self._usual)
        if pace.rate <= 0:
            return
        if wait := self._bucket(self._tenants, (tenant, sort), pace).take(pace, self._clock()):
            raise _refused(f"{tenant} sends more than {pace.rate:g} {sort} per second (api_rate)", wait)

    def _bucket(self, kept: OrderedDict[K, Bucket], key: K, pace: Pace) -> Bucket:
        """The one used longest ago is forgotten first."""
        bucket = kept.get(key)
        if bucket is None:
            bucket = kept[key] = Bucket(pace.burst, self._clock())
            if len(kept) > KEPT:
                kept.popitem(last=False)
        else:
            kept.move_to_end(key)
        return bucket


def read_paces(text: str, usual: Pace) -> dict[str, Pace]:
    """
    >>> read_paces("acme=50, mill=200/400", Pace(1000, 2000))["mill"]
    Pace(rate=200.0, burst=400.0)
    """
    paces: dict[str, Pace] = {}
    for part in filter(None, (one.strip() for one in text.split(","))):
        tenant, _, said = (piece.strip() for piece in part.partition("="))
        rate, _, burst = said.partition("/")
        try:
            pace = Pace(float(rate), float(burst) if burst else max(1.0, usual.burst * float(rate) / (usual.rate or 1)))
        except ValueError:
            pace = Pace(-1, 0)
        if not is_tenant(tenant) or not (math.isfinite(pace.rate) and pace.rate >= 0 and 1 <= pace.burst < math.inf):
            raise SettingsError(f"api_rates: {part!r} is not TENANT=RATE or TENANT=RATE/BURST, as acme=50")
        paces[tenant] = pace
    return paces


def _network(address: str) -> str:
    """Who has one address of IPv6 usually has 2^64 of them."""
    if ":" not in address:
        return address
    try:
        return str(ipaddress.ip_network((address.partition("%")[0], 64), strict=False))
    except ValueError:
        return address


def _refused(why: str, wait: float) -> Refused:
    return Refused(429, "Too Many Requests", f"{why}: wait, then try again", {"Retry-After": str(math.ceil(wait))})
