"""MongoDB 5.0 or newer as a replica set, shared by any number of workers on any number of machines.

A newcomer begins at `store`, which has the verbs, and at `layout`, which has the collections. What goes into the log is
one document for each commit, so a plain step is one insert; whatever else a commit changes goes with it into one
transaction.
"""

from __future__ import annotations

from perdure.stores.mongodb.store import MongoStore

__all__ = ["MongoStore"]
