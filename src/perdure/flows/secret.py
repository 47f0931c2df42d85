"""`secret("stripe")`: a secret by reference. What is passed, recorded and shown is the name, never the value.

    @action
    async def charge(order: Order, key: Secret) -> str:
        stripe = Stripe(key.reveal())

    await charge(order, secret("stripe"))       # the log has "secret://stripe"

Rules kept here: a Secret knows its name and nothing else, so nothing that holds one can give the value away; the value
is had only inside an action, from the worker that runs it, which remembers it in order to keep it out of what it
writes.
"""

from __future__ import annotations

import re
from typing import final

from perdure.errors import InvalidValue, UsageError
from perdure.flows.current import execution, this_attempt

SCHEME = "secret://"
#: No dots at the beginning and no slashes: a name may be that of a file.
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")


@final
class Secret:
    """A reference to a secret; `reveal()` gives the value, inside an action.

    >>> Secret("secret://stripe") == secret("stripe"), str(secret("stripe")), repr(secret("stripe"))
    (True, '***', '***')
    >>> secret("stripe").reference
    'secret://stripe'
    >>> Secret("hunter2")
    Traceback (most recent call last):
    perdure.errors.InvalidValue: a secret is given by reference, as secret://stripe, and never by its value
    """

    __slots__ = ("name",)
    name: str

    def __init__(self, reference: str) -> None:
        found = reference.removeprefix(SCHEME)
        if not reference.startswith(SCHEME) or not NAME.fullmatch(found):
            # The text itself is not repeated: somebody may have given the value.
            raise InvalidValue("a secret is given by reference, as secret://stripe, and never by its value")
        object.__setattr__(self, "name", found)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError("a Secret cannot be changed")

    @property
    def reference(self) -> str:
        """What is written in its place."""
        return SCHEME + self.name

    def reveal(self) -> str:
        """The value. Only inside a running action, where results and errors are watched for it."""
        if execution() is not None:
            raise UsageError("a secret is revealed in an action, not in a workflow: pass it on, as charge(order, key)")
        return this_attempt("Secret.reveal()").reveal(self.name)

    def __perdure_reference__(self) -> str:
        return self.reference

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other.name == self.name

    def __hash__(self) -> int:
        return hash((Secret, self.name))

    def __repr__(self) -> str:
        return "***"

    def __reduce__(self) -> tuple[type[Secret], tuple[str]]:
        return Secret, (self.reference,)


def secret(name: str) -> Secret:
    """A reference to the secret of this name."""
    return Secret(SCHEME + name)
