"""Try a task's file before any device trains on it: `python -m offbeat_worker.tasks FILE`."""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path

from offbeat_core.config import TaskSpec, validate
from offbeat_core.errors import OffbeatError, guard
from offbeat_worker.tasks.check import check
from offbeat_worker.tasks.files import BUILTIN
from offbeat_worker.tasks.task import load


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m offbeat_worker.tasks",
        description="Take one batch through a task's three functions, and say what is wrong with them.",
    )
    parser.add_argument("task", help=f"a task's file, or a name ({', '.join(BUILTIN)})")
    parser.add_argument(
        "--data", type=Path, default=Path("offbeat-data"), metavar="FOLDER", help="data folder [offbeat-data]"
    )
    parser.add_argument("--shard", type=int, default=0, help="which part of the data, from 0 [0]")
    parser.add_argument("--shards", type=int, default=1, help="of how many [1]")
    parser.add_argument("--partition", default="iid", help="iid or dirichlet:ALPHA [iid]")
    parser.add_argument("--batch", type=int, default=32, help="items in the batch [32]")
    parser.add_argument("--seed", type=int, default=1, help="of the model and the division [1]")
    parser.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="of the task (may come again)",
    )
    parser.add_argument("--debug", action="store_true", help="show where an error happened")
    return parser.parse_args()


def main() -> None:
    given = arguments()
    options = {}
    for text in given.option:
        name, equals, value = text.partition("=")
        if not equals:
            raise OffbeatError(f"--option: '{text}' gives no value", "write NAME=VALUE")
        options[name] = value
    if not 0 <= given.shard < given.shards:
        raise OffbeatError(
            f"--shard: {given.shard} does not exist with --shards {given.shards}", "count shards from 0"
        )
    if given.batch < 1:
        raise OffbeatError(f"--batch: {given.batch} is not positive", "give 1 or more")
    validate(TaskSpec, {"name": "any", "partition": given.partition}, "options")
    file = Path(given.task)
    if given.task not in BUILTIN and not file.exists():
        raise OffbeatError(
            f"task: '{given.task}' is neither a file nor a task of Offbeat",
            f"give a task's file (.py), or one of {', '.join(BUILTIN)}",
        )
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    task = load(given.task, []) if given.task in BUILTIN else load(file.stem, [file])
    report = check(
        task,
        given.data,
        options=options,
        shard=given.shard,
        shards=given.shards,
        partition=given.partition,
        seed=given.seed,
        batch=given.batch,
    )
    metrics = ", ".join(f"{name} {value:.4g}" for name, value in report.metrics.items())
    print(f"task        {report.name}")
    print(f"digest      {report.digest}")
    print(f"parameters  {report.parameters:,} to train")
    print(f"samples     {report.train_samples:,} in shard {given.shard} of {given.shards}, "
          f"{report.test_samples:,} held out")  # fmt: skip
    print(f"first batch loss {report.loss:.4g}, {metrics}")


if __name__ == "__main__":
    sys.exit(guard(main))
