"""Signatures of webhooks: made and checked, as values.

We sign by the Standard Webhooks scheme: `webhook-signature` has `v1,` and the base64 of HMAC-SHA256 over
`ID.TIMESTAMP.BODY`, one for each secret while they are rotated. What comes in may be signed in other ways as well
(`Kind`). Rules kept here: a signature is compared in a time that does not depend on what it has in common with the
right one, and all secrets are tried; whatever is wrong, the answer is None and does not say what; the id by which a
call is recognised when it comes twice is part of what was signed.

GitHub and Stripe sign no id of the call, only its body (and Stripe a time). There the id follows from the body: headers
that nobody signed must not make an old call look like a new one.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, TypeAlias, get_args

#: standard: `webhook-id`, `webhook-timestamp`, `webhook-signature`; github: `X-Hub-Signature-256`; stripe:
#: `Stripe-Signature` with `t=` and `v1=`. GitHub signs no time, so a call of its is never too late.
Kind: TypeAlias = Literal["standard", "github", "stripe"]
KINDS: tuple[Kind, ...] = get_args(Kind)
ID, TIMESTAMP, SIGNATURE = "webhook-id", "webhook-timestamp", "webhook-signature"
#: The headers of ours that nobody else may set on what we send.
HEADERS = frozenset({ID, TIMESTAMP, SIGNATURE})
_PREFIX = "whsec_"
_TIME = re.compile(r"[0-9]{1,12}")
#: No dot in an id, for dots divide what is signed.
_ID = re.compile(r"[A-Za-z0-9_:~@/+=-]{1,200}")
#: A header with more signatures than this is not looked at any further.
_MOST = 10


def sign(secrets: Sequence[str], id: str, at: int, body: bytes) -> dict[str, str]:
    """The headers of a call; `at` is in seconds since the epoch.

    >>> body = b'{"test": 2432232314}'
    >>> made = sign(["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"], "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, body)
    >>> made["webhook-signature"]
    'v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE='
    """
    signatures = [f"v1,{_base64(_standard(_key(secret), id, str(at), body))}" for secret in secrets]
    return {ID: id, TIMESTAMP: str(at), SIGNATURE: " ".join(signatures)}


def verify(
    kind: Kind, secrets: Sequence[str], headers: Mapping[str, str], body: bytes, now: float, window: float
) -> str | None:
    """The id of a call whose signature is right and that is in time; None for any other. Names of headers are lower
    case, `now` and `window` are seconds.
    """
    match kind:
        case "standard":
            return _verify_standard(secrets, headers, body, now, window)
        case "github":
            given = headers.get("x-hub-signature-256", "")
            rights = [f"sha256={_hmac(secret.encode(), body).hex()}" for secret in secrets]
            return _id_of(body) if _any_same([given], rights) else None
        case "stripe":
            return _verify_stripe(secrets, headers, body, now, window)


def signed_at(kind: Kind, headers: Mapping[str, str]) -> str:
    """The time that was signed with a call, of one whose signature is right; empty where that has none."""
    match kind:
        case "standard":
            return headers.get(TIMESTAMP, "")
        case "github":
            return ""
        case "stripe":
            return _stripe(headers)[0]


def _verify_standard(
    secrets: Sequence[str], headers: Mapping[str, str], body: bytes, now: float, window: float
) -> str | None:
    id, at = headers.get(ID, ""), headers.get(TIMESTAMP, "")
    given = headers.get(SIGNATURE, "").split(" ")[:_MOST]
    rights = [f"v1,{_base64(_standard(_key(secret), id, at, body))}" for secret in secrets]
    right = _any_same(given, rights)
    return id if right and _ID.fullmatch(id) and _in_time(at, now, window) else None


def _verify_stripe(
    secrets: Sequence[str], headers: Mapping[str, str], body: bytes, now: float, window: float
) -> str | None:
    at, given = _stripe(headers)
    rights = [_hmac(secret.encode(), f"{at}.".encode() + body).hex() for secret in secrets]
    return _id_of(body) if _any_same(given, rights) and _in_time(at, now, window) else None


def _stripe(headers: Mapping[str, str]) -> tuple[str, list[str]]:
    """The time and the signatures that the header says."""
    parts = [part.partition("=") for part in headers.get("stripe-signature", "").split(",")[: _MOST + 1]]
    times = [value for name, _, value in parts if name.strip() == "t"]
    return times[0] if len(times) == 1 else "", [value for name, _, value in parts if name.strip() == "v1"]


def _any_same(given: Iterable[str], rights: Sequence[str]) -> bool:
    """Whether one of them is right; all are compared, however early that is known."""
    found = False
    for one in given:
        for right in rights:
            found |= hmac.compare_digest(one.encode(), right.encode())
    return found


def _in_time(at: str, now: float, window: float) -> bool:
    return _TIME.fullmatch(at) is not None and abs(now - int(at)) <= window


def _id_of(body: bytes) -> str:
    return f"sha256-{hashlib.sha256(body).hexdigest()[:40]}"


def _standard(key: bytes, id: str, at: str, body: bytes) -> bytes:
    return _hmac(key, f"{id}.{at}.".encode() + body)


def _key(secret: str) -> bytes:
    """`whsec_` and base64, as the scheme writes secrets; else the text itself."""
    if secret.startswith(_PREFIX):
        try:
            return base64.b64decode(secret.removeprefix(_PREFIX), validate=True)
        except binascii.Error:
            pass
    return secret.encode()


def _hmac(key: bytes, data: bytes) -> bytes:
    return hmac.digest(key, data, "sha256")


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()
