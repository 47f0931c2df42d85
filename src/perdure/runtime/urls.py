"""Addresses of stores and streams: what may be said about them.

An address may have a password in it: whatever is said about it goes through `redacted` first.
"""

from __future__ import annotations

import re

#: From the colon behind the user to the last @: a password that was not encoded may contain anything.
_PASSWORD = re.compile(r"(://[^:/@]*):.*@", re.DOTALL)
_PARAMETER = re.compile(r"([?&][a-z_]*(?:password|passwd|secret|token)=)[^&\s'\"]*", re.IGNORECASE)
#: In NATS a user without a password is a token.
_TOKEN = re.compile(r"((?:nats|tls)://)[^:/@\s]+@")


def redacted(text: str) -> str:
    """An address, or a text with one in it, without its password.

    >>> redacted("postgresql://ada:p/a@ss@db/orders?sslpassword=x&sslmode=require")
    'postgresql://ada:***@db/orders?sslpassword=***&sslmode=require'
    """
    return _PARAMETER.sub(r"\1***", _TOKEN.sub(r"\1***@", _PASSWORD.sub(r"\1:***@", text)))
