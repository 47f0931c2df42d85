"""The loops that do the work: client, worker, committer, relay."""
