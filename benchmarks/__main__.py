"""`python -m benchmarks` lists the benchmarks, `python -m benchmarks NAME` runs one.

Each ends with a table, writes benchmarks/results/NAME.json, and exits 1 if a bar is missed.
"""

from __future__ import annotations

import argparse
import sys

from benchmarks import barrier, beside, headline, reality, search, simulator

BENCHMARKS = {module.NAME: module for module in (barrier, beside, headline, search, reality, simulator)}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("name", nargs="?", help="which one; without it they are listed")
    options, rest = parser.parse_known_args()
    if not options.name:
        for name, module in BENCHMARKS.items():
            print(f"{name:12} {module.ABOUT}")
        print("\nRun one with: make bench NAME=<name>")
        return 0
    if options.name not in BENCHMARKS:
        print(f"error: no benchmark '{options.name}'\nknown: {', '.join(BENCHMARKS)}", file=sys.stderr)
        return 2
    return BENCHMARKS[options.name].main(rest)


if __name__ == "__main__":
    sys.exit(main())
