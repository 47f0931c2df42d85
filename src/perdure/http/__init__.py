"""The HTTP API: the verbs of the application, for other systems. It adds no logic of its own."""
