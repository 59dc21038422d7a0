"""`python -m benchmarks` lists the benchmarks, `python -m benchmarks NAME` runs one.

Each ends with a table, writes benchmarks/results/NAME.json, and exits 1 if a bar is missed.
"""

from __future__ import annotations

import argparse
import sys

from benchmarks import allocation, barrier, beside, goodput, headline, reality, search, simulator
from offbeat_core.errors import ExitCode, OffbeatError

BENCHMARKS = {
    module.NAME: module
    for module in (barrier, beside, headline, search, reality, simulator, allocation, goodput)
}


def main() -> int:
    if len(sys.argv) > 1 and sys.argv[1] in BENCHMARKS:
        return _run(sys.argv[1], sys.argv[2:])
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("name", nargs="?", help="which one; without it they are listed")
    options = parser.parse_args()
    if not options.name:
        for name, module in BENCHMARKS.items():
            print(f"{name:12} {module.ABOUT}")
        print("\nRun one with: make bench NAME=<name>")
        return 0
    print(f"error: no benchmark '{options.name}'\nknown: {', '.join(BENCHMARKS)}", file=sys.stderr)
    return 2


def _run(name: str, arguments: list[str]) -> int:
    try:
        return BENCHMARKS[name].main(arguments)
    except OffbeatError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.code
    except KeyboardInterrupt:
        print(
            "interrupted: what had finished is kept, and the same command goes on from there", file=sys.stderr
        )
        return ExitCode.INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
