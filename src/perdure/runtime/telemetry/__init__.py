"""What a process tells about itself: log lines, metrics, health."""
