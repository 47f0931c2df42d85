"""What all tests need of their process."""

from __future__ import annotations

import signal

# A shell without job control starts its background jobs with Ctrl-C ignored, and their children inherit that: then no
# test could interrupt a process.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
