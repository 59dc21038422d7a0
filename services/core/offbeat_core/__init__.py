"""What all of Offbeat's services share."""

import os
from importlib.metadata import PackageNotFoundError, version

# A user's data loader may fork. gRPC's own care for forks makes such children crash where asyncio
# drives gRPC, as here; without it they work, as they use no gRPC. It is read when grpc is imported.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

try:
    __version__ = version("offbeat")
except PackageNotFoundError:  # run from a source tree that was never installed
    __version__ = "0+unknown"
