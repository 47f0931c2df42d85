"""Real servers for tests: one that we were given, or a private one on a free port that we end ourselves."""
