"""Adapters of the Stream port, one module each."""
