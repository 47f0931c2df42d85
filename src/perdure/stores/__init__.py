"""Adapters of the Store port, one module each."""
