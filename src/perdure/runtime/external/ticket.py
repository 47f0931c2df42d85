"""The token of one external task: what proves that its bearer was given it, to whichever process is asked.

Nothing is signed and no secret is shared. A token has a random part; the hold of the execution is in the name of its
hash, so the store says which token is good, and for how long. A token that was copied from the store is of no use.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets

import msgspec
from msgspec import Struct

from perdure.core.records import EXTERNAL

#: A key is at most a tenant, an id and what children add to it; the rest is short.
_LONGEST = 4000


class Ticket(Struct, frozen=True, array_like=True):
    """`worker` is the name under which people see who does the task; `lease` is in microseconds."""

    key: str
    secret: str
    worker: str
    lease: int

    @property
    def holder(self) -> str:
        return holder_of(self.secret, self.worker)

    def holds(self, holder: str | None) -> bool:
        """Whether the execution is held in the name of this ticket."""
        return holder is not None and hmac.compare_digest(holder.encode(), self.holder.encode())

    def token(self) -> str:
        return base64.urlsafe_b64encode(msgspec.json.encode(self)).decode().rstrip("=")


def new_secret() -> str:
    return secrets.token_urlsafe(24)


def holder_of(secret: str, worker: str) -> str:
    return f"{EXTERNAL}{worker}:{hashlib.sha256(secret.encode()).hexdigest()[:32]}"


def read_ticket(token: str) -> Ticket | None:
    """The ticket that a token stands for, unless it cannot be one."""
    if len(token) > _LONGEST:
        return None
    try:
        return msgspec.json.decode(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)), type=Ticket)
    except (ValueError, msgspec.MsgspecError):
        return None
