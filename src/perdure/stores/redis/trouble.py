"""What an error of Redis or of its driver means to the caller.

Rules kept here: what the server refuses before a script begins was not written; a connection that ends, or that says
nothing any more, leaves a write unknown; so does a script that broke, for what it wrote before stays written.
"""

from __future__ import annotations

from redis import exceptions

from perdure.errors import OutcomeUnknown, StoreError, StoreFull, StoreOutdated, StoreReadOnly, StoreUnavailable

#: What the driver raises.
FAILURES = (exceptions.RedisError, OSError)

#: By the first word of the server's answer: it has refused before anything of the call was done.
_REFUSALS: dict[str, tuple[type[StoreError], str]] = {
    "OOM": (StoreFull, "its memory is full; nothing was written; raise maxmemory, or remove what fills it"),
    "MISCONF": (StoreFull, "it cannot write to its disk; nothing was written; see its log, and make room"),
    "READONLY": (StoreReadOnly, "it is a replica and takes no writes; name the primary in the address"),
    "NOREPLICAS": (StoreUnavailable, "fewer replicas are there than it demands; nothing was written; try again"),
    "BUSY": (StoreUnavailable, "another script keeps it busy; nothing was written; try again"),
    "LOADING": (StoreUnavailable, "it is reading its data back into memory; nothing was written; try again"),
    "MASTERDOWN": (StoreUnavailable, "it is a replica that has lost its primary; try again"),
    "CLUSTERDOWN": (StoreUnavailable, "its cluster is down; nothing was written; try again"),
    "TRYAGAIN": (StoreUnavailable, "its cluster is moving the keys; nothing was written; try again"),
    "MOVED": (StoreError, "the keys are on another node of its cluster; name that one in the address"),
    "ASK": (StoreError, "the keys are moving to another node of its cluster; name that one in the address"),
    "NOPERM": (StoreError, "this user lacks a right; it needs the commands of all scripts on the keys of the prefix"),
    "NOAUTH": (StoreError, "it asks for a password; write redis://USER:PASSWORD@HOST"),
    "WRONGPASS": (StoreError, "it does not know this name with this password; mend the address"),
}


def word_of(error: BaseException) -> str:
    """The first word of an answer, by which Redis names an error; the driver takes some of them away."""
    match error:
        case exceptions.BusyLoadingError():
            return "LOADING"
        case exceptions.AuthenticationWrongNumberOfArgsError() | exceptions.AuthenticationError():
            return "NOAUTH" if "NOAUTH" in str(error) or "required" in str(error) else "WRONGPASS"
        case exceptions.NoPermissionError():
            return "NOPERM"
        case exceptions.OutOfMemoryError():
            return "OOM"
        case exceptions.ReadOnlyError():
            return "READONLY"
        case exceptions.MasterDownError():
            return "MASTERDOWN"
        case exceptions.ClusterDownError():
            return "CLUSTERDOWN"
        case exceptions.TryAgainError():
            return "TRYAGAIN"
        case exceptions.MovedError():
            return "MOVED"
        case exceptions.AskError():
            return "ASK"
        case exceptions.NoScriptError():
            return "NOSCRIPT"
        case exceptions.ResponseError():
            return str(error).partition(" ")[0]
        case _:
            return ""


def lost(error: BaseException) -> bool:
    """Whether it is the connection that failed, rather than an answer of the server's."""
    return not isinstance(error, exceptions.ResponseError) and word_of(error) not in _REFUSALS


def meaning(error: BaseException, place: str, writes: bool, layout: int) -> StoreError:
    """The error to raise for one that came when a call had been sent."""
    detail = f"({type(error).__name__}: {error})"
    word = word_of(error)
    if word == "LAYOUT":
        return outdated(str(error).removeprefix("LAYOUT "), place, layout)
    if word in _REFUSALS:
        kind, text = _REFUSALS[word]
        return kind(f"{place}: {text} {detail}")
    if not writes:
        kind = StoreUnavailable if lost(error) else StoreError
        return kind(f"{place}: {'the connection was lost; try again' if lost(error) else 'it refused'} {detail}")
    what = "the connection was lost while a write was under way" if lost(error) else "a write broke"
    return OutcomeUnknown(
        f"{place}: {what}, so it may or may not have happened; repeat the call with the same ids {detail}"
    )


def unreachable(error: BaseException, place: str) -> StoreError:
    """The error to raise for a connection that could not be made: nothing was sent."""
    detail = f"({type(error).__name__}: {error})"
    kind, text = _REFUSALS.get(word_of(error), (StoreUnavailable, "it cannot be reached; is it running?"))
    return kind(f"{place}: {text} {detail}")


def outdated(there: str, place: str, layout: int) -> StoreError:
    """The error to raise for a layout that is not ours."""
    if there == "none":
        return StoreError(
            f"{place}: everything that this store kept there has vanished, by FLUSHALL, a restart without its file or"
            " another database; nothing was written; restore the data, or restart the process to begin anew"
        )
    return StoreOutdated(
        f"{place}: its layout has number {there}, this release of Perdure knows {layout} at most; install the release"
        " that wrote it, or a newer one"
    )
