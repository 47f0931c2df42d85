"""API keys over HTTP."""

from __future__ import annotations

from typing import Any

import pytest

from perdure.http.keys import Keys
from tests.http.test_api import Door, problem, served


def test_a_key_is_made_shown_rotated_and_revoked() -> None:
    async def main(door: Door) -> None:
        made = await door("POST", "/v1/keys", {"name": "ci", "roles": ["sender"], "expires": "90d"})
        assert made.status_code == 201 and made.headers["cache-control"] == "no-store"
        id, secret = made.json()["key"]["id"], made.json()["secret"]
        assert made.headers["location"] == f"/v1/keys/{id}"
        keys = Keys(door.app)
        assert (await keys.caller(secret)).tenant == "acme"
        await keys.close()
        listed = await door("GET", "/v1/keys")
        assert [one["name"] for one in listed.json()["keys"]] == ["ci"] and secret not in listed.text
        rotated = await door("POST", f"/v1/keys/{id}/rotate", {"overlap": "1h"})
        assert rotated.json()["secret"] != secret and rotated.headers["cache-control"] == "no-store"
        revoked = await door("POST", f"/v1/keys/{id}/revoke")
        assert revoked.json()["status"] == "revoked"
        told = (await door("GET", f"/v1/keys/{id}")).json()
        whats = [(one["what"], one["by"]) for one in told["history"] if one["what"] != "used"]
        assert whats == [("created", "ann"), ("rotated", "ann"), ("revoked", "ann")]
        problem(await door("POST", f"/v1/keys/{id}/rotate", {}), 400, "usage-error")

    served(main, working=False)


def test_another_tenant_has_no_such_key() -> None:
    async def main(door: Door) -> None:
        id = (await door("POST", "/v1/keys", {"name": "ci", "roles": ["sender"]})).json()["key"]["id"]
        door.who = "evil:eve:admin"
        assert (await door("GET", "/v1/keys")).json() == {"keys": []}
        for method, path, body in [("GET", "", None), ("POST", "/rotate", {}), ("POST", "/revoke", None)]:
            problem(await door(method, f"/v1/keys/{id}{path}", body), 404, "key-not-found")

    served(main, working=False)


@pytest.mark.parametrize("role", ["viewer", "sender", "operator", "author"])
def test_only_an_admin_makes_keys(role: str) -> None:
    async def main(door: Door) -> None:
        door.who = f"acme:eve:{role}"
        problem(await door("POST", "/v1/keys", {"name": "mine", "roles": ["admin"]}), 403, "not-allowed")

    served(main, working=False)


@pytest.mark.parametrize(
    ("body", "name"),
    [
        ({"name": "ci", "roles": []}, "invalid-request"),
        ({"name": "ci", "roles": ["nobody"]}, "invalid-value"),
        ({"name": "", "roles": ["sender"]}, "invalid-value"),
        ({"name": "ci", "roles": ["sender"], "expires": "soon"}, "invalid-value"),
        ({"name": "ci", "roles": ["sender"], "tenant": "evil"}, "invalid-request"),
    ],
)
def test_what_cannot_be_a_key_is_refused(body: dict[str, Any], name: str) -> None:
    async def main(door: Door) -> None:
        problem(await door("POST", "/v1/keys", body), 422, name)

    served(main, working=False)
