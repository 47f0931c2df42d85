"""Other systems over HTTP: webhooks that come in, events and callbacks that go out."""
