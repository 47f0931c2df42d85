"""The key ring in a directory: made once, rotated, shredded, shared by processes."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from pathlib import Path

import pytest

from perdure.errors import KeyMissing, KeyShredded, UsageError
from perdure.runtime.sealing.keyring import FRESH, DirectoryRing


class Clock:
    def __init__(self) -> None:
        self.at = 0.0

    def __call__(self) -> float:
        return self.at


@pytest.fixture
def place(tmp_path: Path) -> str:
    directory = str(tmp_path / "ring")
    DirectoryRing.create(directory)
    return directory


def test_a_tenant_gets_a_key_once_and_every_process_the_same(place: str) -> None:
    first, second = DirectoryRing(place), DirectoryRing(place)
    assert first.current("acme") == second.current("acme")
    assert first.current("acme") != first.current("rival")
    assert first.index("acme") == second.index("acme") != first.current("acme")[1]
    id, key = first.current("acme")
    assert (len(id), len(key), len(first.index("acme")), second.get("acme", id)) == (8, 32, 32, key)


def test_many_processes_that_meet_a_new_tenant_at_once_agree(place: str) -> None:
    code = (
        "import sys; from perdure.runtime.sealing.keyring import DirectoryRing;"
        "print(DirectoryRing(sys.argv[1]).current('acme')[1].hex())"
    )
    processes = [
        subprocess.Popen([sys.executable, "-c", code, place], stdout=subprocess.PIPE, text=True) for _ in range(4)
    ]
    assert len({process.communicate()[0] for process in processes}) == 1


def test_no_key_is_in_a_file_in_the_clear_and_nobody_else_may_read_them(place: str) -> None:
    _, key = DirectoryRing(place).current("acme")
    files = [file for file in Path(place).rglob("*") if file.is_file()]
    assert len(files) == 2
    for file in files:
        assert file.stat().st_mode & 0o077 == 0
    assert base64.b64encode(key).decode() not in (Path(place) / "tenants" / "acme.json").read_text()


def test_a_ring_is_not_made_over_another(place: str) -> None:
    with pytest.raises(UsageError, match="there is a key ring already"):
        DirectoryRing.create(place)


def test_rotation_gives_new_keys_and_keeps_the_old_ones(place: str) -> None:
    ring = DirectoryRing(place)
    id, key = ring.current("acme")
    index = ring.index("acme")
    master, count = ring.rotate()
    assert (ring.masters.current, count, len(ring.masters.masters)) == (master, 1, 2)
    new_id, new_key = ring.current("acme")
    assert (new_id, new_key) != (id, key)
    assert (ring.get("acme", id), ring.index("acme")) == (key, index)
    # All is wrapped by the new master key: the old one can be taken away.
    file = Path(place) / "masters.json"
    told = json.loads(file.read_text())
    file.write_text(json.dumps({**told, "masters": {master: told["masters"][master]}}))
    assert DirectoryRing(place).get("acme", id) == key


def test_another_process_hears_of_a_rotation_within_its_time_and_reads_at_once(place: str) -> None:
    clock = Clock()
    here, there = DirectoryRing(place, clock=clock), DirectoryRing(place)
    id, _ = here.current("acme")
    there.rotate()
    new_id, new_key = there.current("acme")
    assert here.current("acme")[0] == id
    assert here.get("acme", new_id) == new_key
    clock.at = FRESH
    assert here.current("acme")[0] == new_id


def test_shredded_keys_are_gone_and_the_tenant_is_not_taken_for_a_new_one(place: str) -> None:
    clock = Clock()
    here, there = DirectoryRing(place, clock=clock), DirectoryRing(place)
    id, _ = here.current("acme")
    rival = here.current("rival")
    assert there.shred("acme")
    assert not there.shred("acme")
    clock.at = FRESH
    for ring in (here, there, DirectoryRing(place)):
        with pytest.raises(KeyShredded, match="keys of tenant 'acme' were destroyed"):
            ring.current("acme")
        with pytest.raises(KeyShredded):
            ring.get("acme", id)
        with pytest.raises(KeyShredded):
            ring.index("acme")
        assert ring.current("rival") == rival
    assert not (Path(place) / "tenants" / "acme.json").exists()
    assert (list(there.tenants()), list(there.shredded())) == (["rival"], ["acme"])
    there.rotate()
    assert not (Path(place) / "tenants" / "acme.json").exists()


def test_a_tenant_without_keys_can_be_shredded_beforehand(place: str) -> None:
    ring = DirectoryRing(place)
    assert not ring.shred("acme")
    with pytest.raises(KeyShredded):
        ring.current("acme")


def test_two_never_change_the_ring_at_once(place: str) -> None:
    ring = DirectoryRing(place)
    (Path(place) / ".changing").touch()
    for change in (ring.rotate, lambda: ring.shred("acme")):
        with pytest.raises(UsageError, match="somebody else is changing the key ring"):
            change()
    (Path(place) / ".changing").unlink()
    ring.rotate()
    assert not (Path(place) / ".changing").exists()


def test_a_key_that_nobody_has_is_missing_and_not_shredded(place: str) -> None:
    ring = DirectoryRing(place)
    with pytest.raises(KeyMissing, match="no keys of tenant 'acme'"):
        ring.get("acme", b"12345678")
    ring.current("acme")
    with pytest.raises(KeyMissing, match="no key 3132333435363738 of tenant 'acme'"):
        ring.get("acme", b"12345678")


def test_mistakes_in_the_files_are_told(place: str, tmp_path: Path) -> None:
    with pytest.raises(KeyMissing, match="perdure keyring create"):
        DirectoryRing(str(tmp_path / "nowhere"))
    ring = DirectoryRing(place)
    ring.current("acme")
    DirectoryRing.create(str(tmp_path / "other"))
    strange = DirectoryRing(place, str(tmp_path / "other" / "masters.json"))
    with pytest.raises(KeyMissing, match="has no master key"):
        strange.current("acme")
    (Path(place) / "tenants" / "acme.json").write_text("{")
    with pytest.raises(KeyMissing, match="is damaged"):
        DirectoryRing(place).current("acme")
    (Path(place) / "masters.json").write_text("[]")
    with pytest.raises(KeyMissing, match="is no file of master keys"):
        DirectoryRing(place)


def test_a_directory_that_is_away_for_a_moment_stops_nobody_who_has_the_key(place: str) -> None:
    clock = Clock()
    ring = DirectoryRing(place, clock=clock)
    before = ring.current("acme")
    folder = Path(place) / "tenants"
    folder.rename(folder.with_name("away"))
    folder.write_text("not a directory")
    clock.at = FRESH
    assert ring.current("acme") == before
    with pytest.raises(KeyMissing, match="cannot be used"):
        ring.current("rival")


def test_a_disk_that_is_not_there_is_no_new_tenant(place: str) -> None:
    """A new key for a tenant that has one would leave behind what nobody can read once the disk is back."""
    clock = Clock()
    ring = DirectoryRing(place, clock=clock)
    before = ring.current("acme")
    folder = Path(place) / "tenants"
    folder.rename(folder.with_name("away"))
    clock.at = FRESH
    assert ring.current("acme") == before
    with pytest.raises(KeyMissing, match="cannot be used"):
        DirectoryRing(place).current("acme")
    folder.mkdir()
    assert ring.current("acme") == before
    assert list(folder.iterdir()) == []


def test_masters_may_lie_elsewhere(tmp_path: Path) -> None:
    place, masters = str(tmp_path / "ring"), str(tmp_path / "secrets" / "masters.json")
    DirectoryRing.create(place, masters)
    key = DirectoryRing(place, masters).current("acme")
    assert DirectoryRing(place, masters).current("acme") == key
    assert not (Path(place) / "masters.json").exists()
