"""Servers as processes of the tests."""

from __future__ import annotations

import os
import signal
import subprocess


def freeze(process: subprocess.Popen[bytes]) -> None:
    """Stop it, and wait until it stands still: threads that are at work hear of the signal a little later."""
    process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED)
