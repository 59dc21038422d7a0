"""Which synchronization models there are, and whether a run's `sync` is one of them.

For commands that start services: a typing error should cost no waiting for a process. It stands
in this package, which alone may import services, and imports none of the rest of it.
"""

from __future__ import annotations

from offbeat_core.config import RunSettings
from offbeat_scheduler.models import ANYWHERE, make_model, models
from offbeat_scheduler.sync import SyncModel


def names() -> list[str]:
    """Those that Offbeat ships."""
    return list(models())


def check(run: RunSettings) -> type[SyncModel]:
    """The class of the run's model. Raises OffbeatError if there is none, or if its options don't hold."""
    return type(make_model(run.sync, run, ANYWHERE))


def parallelized(run: RunSettings) -> bool:
    """Does the run's model deal a data set of the parameter server?"""
    return make_model(run.sync, run, ANYWHERE).parallelized
