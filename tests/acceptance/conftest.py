"""Clusters for the tests of this folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance import cluster_flows
from tests.acceptance.cluster import Cluster

Make = Callable[..., Cluster]


@pytest.fixture
def make(tmp_path: Path, postgres: str) -> Iterator[Make]:
    """Make clusters on a schema of this test's own, or on another store; they end with the test."""
    made: list[Cluster] = []

    def one(stream: str = "", store: str = "", **settings: Any) -> Cluster:
        folder = tmp_path / f"cluster-{len(made)}"
        folder.mkdir()
        made.append(Cluster(folder, store or postgres, stream, **settings))
        cluster_flows.LEDGER = str(made[-1].ledger.path)
        return made[-1]

    yield one
    for cluster in made:
        cluster.end()


@pytest.fixture
def cluster(make: Make, redis_url: str) -> Cluster:
    """PostgreSQL and Redis, both shared with other tests."""
    return make(redis_url)
