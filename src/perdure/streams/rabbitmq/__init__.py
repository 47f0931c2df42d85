"""RabbitMQ: hints between machines over AMQP 0-9-1.

Nothing here is the truth: every message may vanish at any moment, and the store's due times make up for it.
"""

from perdure.streams.rabbitmq.stream import RabbitStream

__all__ = ["RabbitStream"]
