"""Documents of the Serverless Workflow DSL on the command line: checked, published, run dry, drawn, started."""

from __future__ import annotations

from tests.cli.conftest import Shop

PARCEL = """\
document: {dsl: '1.0.3', namespace: shop, name: parcel, version: '1.0.0'}
do:
  - send: {call: ship, with: {tracking: '${ .tracking }'}}
  - nap: {wait: PT1H}
  - far:
      switch:
        - yes: {when: '${ . | length > 100 }', then: end}
  - tell: {set: {told: '${ . }'}}
"""
BAD = PARCEL.replace("PT1H", "P1H").replace("then: end", "then: nowhere")


def write(shop: Shop, text: str) -> str:
    (shop.folder / "parcel.yaml").write_text(text)
    return "parcel.yaml"


def test_a_document_is_checked_and_published(shop: Shop) -> None:
    assert "can be published" in shop.out("validate", write(shop, PARCEL), "--code", "shop.py")
    assert "shop.parcel" in shop.out("publish", "parcel.yaml", "--code", "shop.py")
    assert "shop.parcel" in shop.out("definitions", "list")


def test_all_that_is_wrong_with_a_document_is_told(shop: Shop) -> None:
    told = " ".join(shop.run("validate", write(shop, BAD), "--code", "shop.py", code=1).output.split())
    assert "/do/1/nap/wait" in told and "is not a duration" in told
    assert "/do/2/far/switch/0/yes/then" in told


def test_a_document_is_run_dry_and_drawn(shop: Shop) -> None:
    (shop.folder / "script.yaml").write_text("input: {tracking: T1}\nresults: {ship: shipped}\n")
    done = shop.json("simulate", write(shop, PARCEL), "--script", "script.yaml", "--code", "shop.py")
    assert (done["status"], done["result"]) == ("completed", {"told": "shipped"})
    drawn = shop.out("simulate", "parcel.yaml", "--script", "script.yaml", "--code", "shop.py", "--diagram", "mermaid")
    assert "nap" in drawn


def test_a_document_is_started_by_name_and_shown(shop: Shop) -> None:
    shop.out("publish", write(shop, PARCEL), "--code", "shop.py")
    assert "p-1" in shop.out("start", "shop.parcel", '{"tracking": "T1"}', "--id", "p-1")
    assert "shop.parcel" in shop.out("show", "p-1")
    assert "send" in shop.out("show", "p-1", "--diagram", "mermaid")
