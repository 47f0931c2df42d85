"""Hints over the protocol of Kafka: Apache Kafka, Redpanda and what else speaks it.

Nothing here is the truth: every record may be lost, doubled or reordered, and the store's due times make up for it.
"""

from perdure.streams.kafka.stream import KafkaStream

__all__ = ["KafkaStream"]
