"""One line per record, the same for every service."""

from __future__ import annotations

import logging
import sys


def setup(service: str, level: str = "info") -> logging.Logger:
    """Log to stderr as 'time LEVEL service: message'; returns the service's logger."""
    logging.basicConfig(
        stream=sys.stderr,
        level=level.upper(),
        format=f"%(asctime)s %(levelname)-7s {service}: %(message)s",
        datefmt="%H:%M:%S",
        force=True,
    )
    logging.getLogger("asyncio").setLevel(logging.WARNING)
    return logging.getLogger(service)
