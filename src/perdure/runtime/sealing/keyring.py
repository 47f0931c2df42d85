"""A key ring in a directory: master keys in one file, and a file for each tenant with its own keys, wrapped.

    keyring/masters.json            the master keys by id, one of which is current
    keyring/tenants/acme.json       the keys of acme, each wrapped by a master key
    keyring/tenants/acme.shredded   they were destroyed: nothing of acme is readable, and nothing is written any more

Rules kept here: a key is on disk for good before anything is sealed with it; of several processes that meet a new
tenant at once one makes its key and all use it, so all of them need the same directory; to rotate adds keys and never
takes one away; to shred leaves a mark first, so that no process takes the tenant for a new one; of those who rotate and
shred there is one at a time. A process goes by what it has read for `FRESH` seconds.
"""

from __future__ import annotations

import base64
import json
import os
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from msgspec import Struct, structs

from perdure.errors import KeyMissing, KeyShredded, UsageError

FORMAT = "perdure-keyring/1"
#: For how many seconds a process goes by what it has read of a tenant's keys.
FRESH = 10.0
_NONCE = 12


class Masters(Struct, frozen=True):
    """The file of master keys, which are base64 of 32 random bytes."""

    format: str
    current: str
    masters: dict[str, str]


class Wrapped(Struct, frozen=True):
    """A key that only its master key opens."""

    master: str
    key: str
    made_at: str


class TenantKeys(Struct, frozen=True):
    """The file of a tenant. `index` is for comparisons and never changes."""

    tenant: str
    current: str
    index: Wrapped
    keys: dict[str, Wrapped]


class _Open(Struct, frozen=True):
    """What a process has in mind of a tenant."""

    stamp: int
    current: bytes
    index: bytes
    keys: dict[bytes, bytes]


class DirectoryRing:
    """A KeyRing; `masters` is the file of master keys, if that is not in the directory itself."""

    def __init__(self, directory: str, masters: str = "", clock: Callable[[], float] = time.monotonic) -> None:
        self._folder = Path(directory) / "tenants"
        self._file = Path(masters) if masters else Path(directory) / "masters.json"
        self._clock = clock
        self._masters = self._read_masters()
        self._known: dict[str, tuple[float, _Open]] = {}

    # What sealing asks.

    def current(self, tenant: str) -> tuple[bytes, bytes]:
        """Id and key for what is written now; the first call for a new tenant makes them."""
        found = self._tenant(tenant)
        return found.current, found.keys[found.current]

    def get(self, tenant: str, id: bytes) -> bytes:
        """The key of this id, however old."""
        found = self._tenant(tenant, make=False)
        if id not in found.keys:
            self._known.pop(tenant, None)  # it may have been made a moment ago, elsewhere
            found = self._tenant(tenant, make=False)
        if id not in found.keys:
            raise KeyMissing(
                f"the key ring has no key {id.hex()} of tenant {tenant!r}: every process needs the same key ring;"
                " restore the file of the tenant from a backup, then redrive what is stuck"
            )
        return found.keys[id]

    def index(self, tenant: str) -> bytes:
        return self._tenant(tenant).index

    # What an administrator does.

    @staticmethod
    def create(directory: str, masters: str = "") -> str:
        """Make a new ring; gives the id of its master key."""
        with _writing(Path(directory)):
            return DirectoryRing._create(directory, masters)

    @staticmethod
    def _create(directory: str, masters: str) -> str:
        file = Path(masters) if masters else Path(directory) / "masters.json"
        if file.exists():
            raise UsageError(f"there is a key ring already: {file}; `perdure keyring rotate` gives it a new key")
        for folder in (file.parent, Path(directory) / "tenants"):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        id = _new_id()
        _write(file, Masters(FORMAT, id, {id: _text(secrets.token_bytes(32))}), new=True)
        return id

    def rotate(self) -> tuple[str, int]:
        """A new master key, and a new key for each tenant; gives the master's id and the number of tenants.

        Old keys stay, wrapped anew, so old data stays readable and an old master key is no longer needed.
        """
        with _writing(self._folder.parent, alone=True):
            return self._rotate()

    def _rotate(self) -> tuple[str, int]:
        id = _new_id()
        before = self._read_masters()
        self._masters = Masters(FORMAT, id, {**before.masters, id: _text(secrets.token_bytes(32))})
        _write(self._file, self._masters)  # first of all: what is wrapped by it must never be without it
        count = 0
        for tenant in self.tenants():
            kept = self._read(tenant)
            if kept is None:
                continue
            keys = {one: self._rewrapped(tenant, one, wrapped) for one, wrapped in kept.keys.items()}
            new = secrets.token_bytes(8).hex()
            keys[new] = self._wrap(tenant, new, secrets.token_bytes(32))
            index = self._rewrapped(tenant, "index", kept.index)
            _write(self._path(tenant), structs.replace(kept, current=new, index=index, keys=keys))
            count += 1
        self._known.clear()
        return id, count

    def shred(self, tenant: str) -> bool:
        """Destroy the keys of a tenant, for ever; whether it had any."""
        with _writing(self._folder.parent, alone=True):
            return self._shred(tenant)

    def _shred(self, tenant: str) -> bool:
        if self._mark(tenant).exists() and not self._path(tenant).exists():
            return False
        told = {"tenant": tenant, "shredded_at": datetime.now(UTC).isoformat(timespec="seconds")}
        _write_bytes(self._mark(tenant), json.dumps(told).encode())
        had = self._path(tenant).exists()
        with suppress(FileNotFoundError):
            _overwrite(self._path(tenant))
            self._path(tenant).unlink()
            _sync(self._folder)
        self._known.pop(tenant, None)
        return had

    def tenants(self) -> Iterator[str]:
        """Those that have keys."""
        yield from sorted(file.stem for file in self._folder.glob("*.json"))

    def shredded(self) -> Iterator[str]:
        yield from sorted(file.stem for file in self._folder.glob("*.shredded"))

    @property
    def masters(self) -> Masters:
        return self._masters

    # Inside.

    def _tenant(self, tenant: str, make: bool = True) -> _Open:
        known = self._known.get(tenant)
        now = self._clock()
        if known is not None and now - known[0] < FRESH:
            return known[1]
        try:
            found = self._looked_up(tenant, make, known[1] if known is not None else None)
        except OSError as error:
            if known is None:
                raise KeyMissing(f"the key ring at {self._folder.parent} cannot be used: {error}") from error
            found = known[1]  # a directory that is away for a moment is no reason to stop
        if found is None:
            raise KeyMissing(
                f"the key ring has no keys of tenant {tenant!r}: every process needs the same key ring; restore the"
                " file of the tenant from a backup, then redrive what is stuck"
            )
        self._known[tenant] = now, found
        return found

    def _looked_up(self, tenant: str, make: bool, before: _Open | None) -> _Open | None:
        if self._mark(tenant).exists():
            self._known.pop(tenant, None)
            raise KeyShredded(
                f"the keys of tenant {tenant!r} were destroyed: what they encrypted cannot be read by anybody, and"
                " nothing of this tenant is written any more"
            )
        found = self._load(tenant, before)
        if found is None and before is not None:
            return before  # a file that is gone without a mark is a disk that is away, not a new tenant
        if found is None and make:
            self._make(tenant)
            found = self._load(tenant, None)
        return found

    def _load(self, tenant: str, before: _Open | None) -> _Open | None:
        try:
            stamp = self._path(tenant).stat().st_mtime_ns
        except FileNotFoundError:
            return None
        if before is not None and before.stamp == stamp:
            return before
        kept = self._read(tenant)
        if kept is None:
            return None
        keys = {bytes.fromhex(id): self._unwrap(tenant, id, one) for id, one in kept.keys.items()}
        return _Open(stamp, bytes.fromhex(kept.current), self._unwrap(tenant, "index", kept.index), keys)

    def _make(self, tenant: str) -> None:
        id = secrets.token_bytes(8).hex()
        made = TenantKeys(
            tenant,
            id,
            self._wrap(tenant, "index", secrets.token_bytes(32)),
            {id: self._wrap(tenant, id, secrets.token_bytes(32))},
        )
        with suppress(FileExistsError):  # somebody was quicker: theirs counts
            _write(self._path(tenant), made, new=True)

    def _read(self, tenant: str) -> TenantKeys | None:
        try:
            data = self._path(tenant).read_bytes()
        except FileNotFoundError:
            return None
        try:
            return msgspec.json.decode(data, type=TenantKeys)
        except msgspec.MsgspecError as error:
            raise KeyMissing(f"{self._path(tenant)} is damaged: restore it from a backup") from error

    def _read_masters(self) -> Masters:
        try:
            found = msgspec.json.decode(self._file.read_bytes(), type=Masters)
        except OSError as error:
            raise KeyMissing(
                f"the master keys cannot be read from {self._file}: {error.strerror}; `perdure keyring create` makes a"
                " key ring"
            ) from error
        except msgspec.MsgspecError as error:
            raise KeyMissing(f"{self._file} is no file of master keys: {error}") from error
        if found.current not in found.masters:
            raise KeyMissing(f"{self._file} names {found.current!r} as its current key and does not have it")
        return found

    def _master(self, id: str) -> AESGCM:
        if id not in self._masters.masters:
            self._masters = self._read_masters()
        try:
            return AESGCM(base64.b64decode(self._masters.masters[id]))
        except (KeyError, ValueError) as error:
            raise KeyMissing(f"{self._file} has no master key {id!r}: put it back") from error

    def _wrap(self, tenant: str, id: str, key: bytes) -> Wrapped:
        nonce, master = os.urandom(_NONCE), self._masters.current
        wrapped = nonce + self._master(master).encrypt(nonce, key, f"{tenant}/{id}".encode())
        return Wrapped(master, _text(wrapped), datetime.now(UTC).isoformat(timespec="seconds"))

    def _unwrap(self, tenant: str, id: str, wrapped: Wrapped) -> bytes:
        data = base64.b64decode(wrapped.key)
        try:
            return self._master(wrapped.master).decrypt(data[:_NONCE], data[_NONCE:], f"{tenant}/{id}".encode())
        except InvalidTag as error:
            raise KeyMissing(
                f"the master key {wrapped.master!r} of {self._file} is not the one that wrapped the keys of {tenant!r}"
            ) from error

    def _rewrapped(self, tenant: str, id: str, wrapped: Wrapped) -> Wrapped:
        return structs.replace(self._wrap(tenant, id, self._unwrap(tenant, id, wrapped)), made_at=wrapped.made_at)

    def _path(self, tenant: str) -> Path:
        return self._folder / f"{tenant}.json"

    def _mark(self, tenant: str) -> Path:
        return self._folder / f"{tenant}.shredded"


@contextmanager
def _writing(directory: Path, alone: bool = False) -> Iterator[None]:
    """Errors of files become ours. `alone`: two that change the same files would lose keys of each other."""
    lock = directory / ".changing"
    try:
        if alone:
            os.close(os.open(lock, os.O_CREAT | os.O_EXCL, 0o600))
    except FileExistsError:
        raise UsageError(
            f"somebody else is changing the key ring; if nobody is, because it was interrupted, remove {lock}"
        ) from None
    except OSError as error:
        raise KeyMissing(f"the key ring at {directory} cannot be changed: {error}") from error
    try:
        yield
    except OSError as error:
        raise KeyMissing(f"the key ring at {directory} cannot be changed: {error}") from error
    finally:
        if alone:
            lock.unlink(missing_ok=True)


def _new_id() -> str:
    return f"{datetime.now(UTC):%Y%m%d}-{secrets.token_hex(4)}"


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _write(path: Path, value: Struct, new: bool = False) -> None:
    _write_bytes(path, msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n", new)


def _write_bytes(path: Path, data: bytes, new: bool = False) -> None:
    """All of it or nothing, and on disk when this returns; if it must be `new`, FileExistsError where it is not."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(6)}")
    try:
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if new:
            os.link(draft, path)
        else:
            draft.replace(path)
        _sync(path.parent)
    finally:
        draft.unlink(missing_ok=True)


def _overwrite(path: Path) -> None:
    """The best that can be done through a file system; copies in backups are others' to destroy."""
    with path.open("r+b") as file:
        file.write(b"\0" * path.stat().st_size)
        file.flush()
        os.fsync(file.fileno())


def _sync(folder: Path) -> None:
    if os.name == "nt":
        return  # there a directory cannot be opened
    number = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
