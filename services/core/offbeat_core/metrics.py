"""A Prometheus endpoint per service, with values computed when they are scraped.

Collectors read the service's own state; nothing is kept twice, and a worker that has
left leaves no series behind.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from offbeat_core.channels import split_address
from offbeat_core.errors import OffbeatError


def serve(address: str, *collectors: Collector, field: str = "metrics_listen") -> tuple[int, object]:
    """Serve `collectors` at http://address/metrics. Returns (port, server); server.shutdown() ends it.

    Raises OffbeatError where the port is taken.
    """
    host, port = split_address(address, field)
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    for collector in collectors:
        registry.register(collector)
    try:
        server, _ = start_http_server(port, host, registry)
    except OSError as error:
        raise OffbeatError(
            f"{field}: {address}: {error.strerror or error}",
            "end what uses the port, or choose another (port 0 takes a free one)",
        ) from error
    return server.server_port, server


def gauge(name: str, text: str, value: float, **labels: str) -> GaugeMetricFamily:
    """One sample of a gauge, with labels from a closed set."""
    family = GaugeMetricFamily(name, text, labels=list(labels))
    family.add_metric(list(labels.values()), value)
    return family
