"""`python -m support.impatient`: offbeat-worker that notices a dead link in seconds, not in a minute."""

import sys

from offbeat_core import channels

QUICK = {
    "grpc.keepalive_time_ms": 1000,
    "grpc.keepalive_timeout_ms": 2000,
    "grpc.http2.ping_timeout_ms": 2000,
}

if __name__ == "__main__":
    channels.CLIENT_OPTIONS[:] = [(name, QUICK.get(name, value)) for name, value in channels.CLIENT_OPTIONS]
    from offbeat_worker.main import main

    sys.exit(main())
