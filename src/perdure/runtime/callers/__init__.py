"""What callers do: start, send, find, wait for the end, ask what became of something."""
