"""Memory that runs out: how torch says so, and how many samples at a time are tried from then on."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable
from typing import TypeVar

import torch

from offbeat_core.errors import OffbeatError

log = logging.getLogger(__name__)

T = TypeVar("T")

SIGNS = (
    "out of memory",  # CUDA, also of errors that have no type of their own
    "DefaultCPUAllocator",
    "CUDNN_STATUS_ALLOC_FAILED",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "NVML_SUCCESS == r",  # a Jetson has no NVML, and torch asks it when an allocation has failed
)
"""In the text of a RuntimeError."""


def ran_out(error: BaseException | None) -> bool:
    """Does this error, or one that it was raised from, say that memory ran out?"""
    while error is not None:
        if isinstance(error, (MemoryError, torch.cuda.OutOfMemoryError)):
            return True
        if isinstance(error, RuntimeError) and any(sign in str(error) for sign in SIGNS):
            return True
        error = error.__cause__
    return False


class Fit:
    """How many samples fit this device at a time.

    Args:
        bound: as configured; 0: not known.
    """

    def __init__(self, bound: int = 0) -> None:
        self.bound = bound

    def of(self, batch: int) -> int:
        """So much of a batch."""
        return min(batch, self.bound) if self.bound else batch

    def within(self, batch: int, attempt: Callable[[int], T], clear: Callable[[], None]) -> T:
        """What `attempt` returns for a batch that fits: for `batch`, or else for half of it, and so on.
        What did not fit is not tried again.

        Args:
            attempt: takes the samples to try with.
            clear: undoes what an attempt that failed has left.

        Raises OffbeatError where a single sample runs out of memory, and whatever else `attempt` raises.
        """
        samples = first = self.of(batch)
        while True:
            try:
                result = attempt(samples)
                break
            except Exception as error:
                if not ran_out(error):
                    raise
                if samples == 1:
                    raise OffbeatError(
                        f"memory: a single sample does not fit: {_first_line(error)}",
                        "take a smaller model, or free memory on this device",
                    ) from error
            # Only now, with the error gone, is what it led to let go of.
            samples = self.bound = samples // 2
            clear()
            _release()
        if samples < first:
            log.warning(
                "memory ran out with %d samples at a time: from now on there are at most %d here",
                first,
                samples,
            )
        return result


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0]


def _release() -> None:
    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()
