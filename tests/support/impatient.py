"""`python -m support.impatient`: offbeat-worker that notices dead links and threads in seconds."""

import sys

from offbeat_core import channels

QUICK = {
    "grpc.keepalive_time_ms": 1000,
    "grpc.keepalive_timeout_ms": 2000,
    "grpc.http2.ping_timeout_ms": 2000,
}

if __name__ == "__main__":
    channels.CLIENT_OPTIONS[:] = [(name, QUICK.get(name, value)) for name, value in channels.CLIENT_OPTIONS]
    from offbeat_worker import agent
    from offbeat_worker.main import main

    agent.HUNG_S = 2.0

    sys.exit(main())
