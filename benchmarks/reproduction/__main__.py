"""`make reproduce`: the sources' experiments, (a) to (k), in virtual time.

    python -m benchmarks.reproduction [run]        run what is missing, write results, page and plots
    python -m benchmarks.reproduction document     write page and plots from the results there are
    python -m benchmarks.reproduction tune [PLACE] find the learning rates
    python -m benchmarks.reproduction scenarios    write the scenario files

QUICK=1 runs fewer models, sizes and seeds; ONLY=a,c some experiments; WORKERS=N on N cores. Every finished
run is kept in benchmarks/work/reproduction, so what was interrupted goes on where it was.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from benchmarks.reproduction import document, files, runner, tuned
from benchmarks.reproduction.experiments import ABOUT, EXPERIMENTS
from offbeat_core.errors import OffbeatError

ROOT = Path(__file__).parents[2]


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.reproduction",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("action", nargs="?", default="run", choices=("run", "document", "tune", "scenarios"))
    parser.add_argument("places", nargs="*", help=f"of tune: {', '.join(tuned.PLACES)}; default: all")
    parser.add_argument("--fresh", action="store_true", help="forget what is kept")
    options = parser.parse_args(argv)
    try:
        if options.places and options.action != "tune":
            raise OffbeatError(f"{options.action}: takes no '{options.places[0]}'", "leave it out")
        if options.action == "tune":
            unknown = [place for place in options.places if place not in tuned.PLACES]
            if unknown:
                raise OffbeatError(f"tune: '{unknown[0]}' is not known", f"known: {', '.join(tuned.PLACES)}")
            tuned.run(options.places, fresh=options.fresh, workers=_workers())
        elif options.action == "run":
            runner.run(_only(), quick=_quick(), fresh=options.fresh, workers=_workers())
        if options.action in ("scenarios", "tune"):
            for path in files.write(ABOUT):
                print(f"written: {path.relative_to(ROOT)}")
        if options.action in ("run", "document"):
            print(f"written: {document.write().relative_to(ROOT)}")
    except OffbeatError as error:
        print(f"error: {error.problem}\n{error.remedy}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; what was finished is kept: run it again to go on", file=sys.stderr)
        return 130
    return 0


def _quick() -> bool:
    value = os.environ.get("QUICK", "")
    if value not in ("", "0", "1"):
        raise OffbeatError(f"QUICK: '{value}' is neither 0 nor 1", "give QUICK=1, or leave it out")
    return value == "1"


def _only() -> list[str]:
    """The experiments asked for, in order; all without ONLY."""
    asked = [letter.strip() for letter in os.environ.get("ONLY", "").split(",") if letter.strip()]
    unknown = [letter for letter in asked if letter not in EXPERIMENTS]
    if unknown:
        raise OffbeatError(
            f"ONLY: there is no experiment '{unknown[0]}'", f"there are: {', '.join(EXPERIMENTS)}"
        )
    return [letter for letter in EXPERIMENTS if not asked or letter in asked]


def _workers() -> int | None:
    value = os.environ.get("WORKERS", "")
    if value and not (value.isdigit() and int(value)):
        raise OffbeatError(f"WORKERS: '{value}' is not a number of processes", "give 1 or more")
    return int(value) if value else None


if __name__ == "__main__":
    sys.exit(main())
