"""Amazon DynamoDB, shared by any number of workers on any number of machines.

A newcomer begins at `items`, which says what the one table has in it, then `store`, which has the verbs. What one
execution writes is one unit: a few items that become true together or not at all (`writing`).
"""

from __future__ import annotations

from perdure.stores.dynamodb.store import DynamoStore

__all__ = ["DynamoStore"]
