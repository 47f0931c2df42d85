"""Tries of actions: where they run, with which limits, and what follows from how they went."""
