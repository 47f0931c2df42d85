"""A caller of the API that is served by another process."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any


def ask(address: str, path: str, body: Any = None, key: str = "") -> tuple[int, Any]:
    """The status and the answer; with a body it is a POST."""
    data = None if body is None else json.dumps(body).encode()
    headers = {"content-type": "application/json", **({"authorization": f"Bearer {key}"} if key else {})}
    try:
        with urllib.request.urlopen(urllib.request.Request(address + path, data, headers), timeout=60) as answer:
            return answer.status, None if answer.status == 204 else json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)
