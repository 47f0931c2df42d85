"""NATS with JetStream, 2.10 or newer: hints between machines.

Nothing here is the truth: every byte in NATS may vanish at any moment, and the store's due times make up for it.
"""

from perdure.streams.nats.stream import NatsStream

__all__ = ["NatsStream"]
