"""Tasks: what is trained on which data. Built in, or one Python file of the user's own.

A task is a file with three functions, `build_model`, `load_data` and
`loss_and_metric`; docs/tasks.md says what each takes and returns. It lives on the
device: the hub names it and compares its digest, and never sends code.

`available` is cheap (it reads and parses files, runs nothing and imports no torch);
`load` runs the file; `check` takes one batch through all three functions.
"""

from __future__ import annotations

from offbeat_worker.tasks.check import check, check_batch
from offbeat_worker.tasks.files import available
from offbeat_worker.tasks.results import as_number
from offbeat_worker.tasks.task import Task, load

__all__ = ["Task", "as_number", "available", "check", "check_batch", "load"]
