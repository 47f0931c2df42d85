"""Real servers for tests: one that the environment names, or a private one that is started and stopped here."""
