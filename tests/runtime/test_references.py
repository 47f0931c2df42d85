"""References to secrets lead to what was put there for them, and to nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from perdure import Perdure
from perdure.errors import SecretMissing
from perdure.runtime.references import References


def test_a_variable_has_a_prefix_and_is_for_the_home_tenant_alone() -> None:
    found = References("", "home", {"PERDURE_SECRET_SHOP": "s3cret", "SHOP": "other", "HOME": "/root"})
    assert found.resolve("env:SHOP", "home") == "s3cret"
    for reference in ("env:HOME", "env:PERDURE_SECRET_SHOP", "env:NONE"):
        with pytest.raises(SecretMissing, match="there is no secret"):
            found.resolve(reference, "home")
    with pytest.raises(SecretMissing, match="cannot name variables"):
        found.check("env:SHOP", "other")


def test_a_file_lies_in_the_folder_of_its_tenant(tmp_path: Path) -> None:
    for tenant in ("one", "two"):
        (tmp_path / tenant).mkdir()
        (tmp_path / tenant / "shop").write_text(f"of {tenant}\n")
    (tmp_path / "one" / "empty").write_text("\n")
    (tmp_path / "one" / "long").write_text("x" * 10_001)
    (tmp_path / "one" / "binary").write_bytes(b"\xff\xfe")
    found = References(str(tmp_path), "one", {})
    assert [found.resolve("file:shop", tenant) for tenant in ("one", "two")] == ["of one", "of two"]
    for name in ("none", "empty", "long", "binary"):
        with pytest.raises(SecretMissing, match="secret_files"):
            found.resolve(f"file:{name}", "one")
    with pytest.raises(SecretMissing):
        References("", "one", {}).resolve("file:shop", "one")


@pytest.mark.parametrize(
    "reference",
    ["", "shop", "file:", "file:../two/shop", "file:/etc/passwd", "file:..", "file:.x", "env:a b"],
)
def test_what_is_no_reference_is_refused_and_not_shown(reference: str, tmp_path: Path) -> None:
    with pytest.raises(SecretMissing, match="env:NAME or file:NAME"):
        References(str(tmp_path), "one", {}).check(reference, "one")


def test_variables_of_secrets_are_no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERDURE_SECRET_SHOP", "s3cret")
    app = Perdure("memory://")
    assert app.references.resolve("env:SHOP", app.tenant) == "s3cret"


def test_a_finder_of_the_application_is_asked_for_the_secret_of_the_tenant() -> None:
    found = References("", "one", {}, lambda tenant, name: f"{name} of {tenant}")
    assert found.resolve("secret://shop", "two") == "shop of two"
    for reference in ("secret://", "secret://../shop", "secret:shop"):
        with pytest.raises(SecretMissing):
            found.check(reference, "two")
    with pytest.raises(SecretMissing):
        References("", "one", {}).check("secret://shop", "one")
