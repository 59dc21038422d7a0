"""What all of Offbeat's services share."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("offbeat")
except PackageNotFoundError:  # run from a source tree that was never installed
    __version__ = "0+unknown"
