"""A child process that ends when its parent does, even if the parent was killed with -9.

The parent keeps the write end of a pipe and passes the read end down; the system
closes the pipe with the parent, and the child, reading it, sees the end.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable

VARIABLE = "OFFBEAT_LIFELINE_FD"
GRACE_S = 5.0


def hold_on(on_cut: Callable[[], None] | None = None) -> None:
    """Watch the parent's lifeline, if this process was given one.

    When it is cut the process gets SIGTERM (or `on_cut` is called), and is ended
    after `GRACE_S` if it is still there.
    """
    value = os.environ.pop(VARIABLE, "")
    if not value:
        return
    descriptor = int(value)
    os.set_inheritable(descriptor, False)

    def watch() -> None:
        while os.read(descriptor, 1):
            pass
        if on_cut:
            on_cut()
        else:
            os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(GRACE_S)
        os._exit(1)

    threading.Thread(target=watch, name="lifeline", daemon=True).start()
