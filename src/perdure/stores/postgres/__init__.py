"""PostgreSQL 14 or newer, shared by any number of workers on any number of machines.

A newcomer begins at `store`, which has the verbs. What they do to the tables is in `migrations/*.sql`, for most of them
are functions in the database: one call, one round trip, one transaction.
"""

from __future__ import annotations

from perdure.stores.postgres.store import PostgresStore

__all__ = ["PostgresStore"]
