"""The worker: executions come in, are held, take their turns, are written and leave."""
