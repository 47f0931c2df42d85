"""Secrets: what is kept and shown is a name; where values are found, and how they stay out of everything written."""
