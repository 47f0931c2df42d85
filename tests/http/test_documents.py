"""Documents of the Serverless Workflow DSL over HTTP: published, started, followed, drawn; and what is refused."""

from __future__ import annotations

from perdure import Client
from tests.client.served import Served, run as served_client
from tests.http.test_api import Door, problem, served

PARCEL = """\
document: {dsl: '1.0.3', namespace: http, name: parcel, version: '1.0.0'}
input: {schema: {document: {type: object, required: [n]}}}
do:
  - hear: {listen: {to: {one: {with: {type: paid}}}}, output: {as: '.[0]'}}
  - tell: {set: {n: '${ $context.n }', paid: '${ . }'}}
"""


def test_a_document_is_published_and_started_over_http() -> None:
    async def main(door: Door) -> None:
        made = await door("POST", "/v1/definitions", {"definition": PARCEL})
        assert (made.status_code, made.json()["name"]) == (201, "http.parcel")
        problem(await door("POST", "/v1/executions", {"workflow": "http.parcel", "input": {}}), 422, "invalid-value")
        begun = await door("POST", "/v1/executions", {"workflow": "http.parcel", "input": {"n": 1}, "id": "p-1"})
        assert begun.status_code == 202
        await door("POST", "/v1/executions/p-1/events", {"name": "paid", "payload": 5})
        ended = await door("GET", "/v1/executions/p-1/result?wait=10s")
        assert ended.json()["result"] == {"n": 1, "paid": 5}
        drawn = await door("GET", "/v1/executions/p-1/diagram")
        assert "hear" in drawn.text

    served(main)


def test_all_that_is_wrong_with_a_document_is_told_over_http() -> None:
    async def main(door: Door) -> None:
        bad = PARCEL.replace("listen:", "lisen:").replace("set:", "sett:")
        found = problem(await door("POST", "/v1/definitions", {"definition": bad}), 422, "definition-invalid")
        assert [one["where"] for one in found["problems"]] == ["/do/0/hear", "/do/1/tell"]

    served(main, working=False)


def test_a_client_publishes_and_starts_a_document() -> None:
    async def main(place: Served, ann: Client) -> None:
        await ann.definitions.publish(PARCEL)
        begun = await ann.start("http.parcel", {"n": 2})
        await begun.send("paid", 7)
        assert await begun.result("10s") == {"n": 2, "paid": 7}

    served_client(main)
