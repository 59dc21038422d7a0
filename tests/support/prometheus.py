"""A real Prometheus on loopback, with a configuration of the repository's."""

import contextlib
import json
import re
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any


class Prometheus:
    """Started by `with`; scrapes every second, so that a short run leaves enough to look at.

    Args:
        config: a configuration as deployed.
        targets: where what the configuration calls HOST:PORT is reached from here.
        folder: for its data and log.
    """

    def __init__(self, config: Path, targets: dict[str, str], folder: Path) -> None:
        text = config.read_text()
        for name, address in targets.items():
            assert f'"{name}"' in text, f"{config} does not scrape {name}"
            text = text.replace(f'"{name}"', f'"{address}"')
        text = re.sub(r"scrape_(interval|timeout): \S+", r"scrape_\1: 1s", text)
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        (folder / "prometheus.yml").write_text(text)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.url = f"http://127.0.0.1:{probe.getsockname()[1]}"
        self.started = time.time()

    def __enter__(self) -> "Prometheus":
        with open(self.folder / "log", "w") as log:
            self._process = subprocess.Popen(
                [
                    "prometheus",
                    f"--config.file={self.folder}/prometheus.yml",
                    f"--storage.tsdb.path={self.folder}/data",
                    f"--web.listen-address={self.url.removeprefix('http://')}",
                ],
                stdout=log,
                stderr=log,
            )
        try:
            self._wait()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _wait(self) -> None:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and self._process.poll() is None:
            with contextlib.suppress(OSError), urllib.request.urlopen(f"{self.url}/-/ready", timeout=5):
                return
            time.sleep(0.2)
        raise AssertionError(f"prometheus did not start:\n{(self.folder / 'log').read_text()[-2000:]}")

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _get(self, path: str, **parameters: object) -> Any:
        url = f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=30) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{parameters}: {json.load(error)['error']}") from None

    def targets(self) -> dict[str, str]:
        """Job -> health ("up", "down", "unknown")."""
        return {
            target["labels"]["job"]: target["health"]
            for target in self._get("targets", state="active")["activeTargets"]
        }

    def now(self, query: str) -> dict[tuple[tuple[str, str], ...], float]:
        """Labels, sorted, without the name -> value."""
        found = self._get("query", query=query)["result"]
        return {_labels(series["metric"]): float(series["value"][1]) for series in found}

    def since_start(self, query: str) -> dict[tuple[tuple[str, str], ...], list[float]]:
        """The same, each with its values at every second since this Prometheus was started."""
        found = self._get("query_range", query=query, start=self.started, end=time.time(), step=1)["result"]
        return {_labels(series["metric"]): [float(v) for _, v in series["values"]] for series in found}


def _labels(metric: dict[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((key, value) for key, value in metric.items() if key != "__name__"))
