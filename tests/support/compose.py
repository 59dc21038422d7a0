"""`docker compose` on a real engine, as a project of its own: two tests do not disturb each other."""

import json
import os
import subprocess
import time
import uuid
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
WORKERS = ("worker-1", "worker-2", "worker-3")
SERVICES = ("scheduler", "parameter-server", *WORKERS, "evaluator")
"""All that is built here. The images of Prometheus and Grafana come from a registry."""


class Stack:
    """The services of docker-compose.yml, with images and volumes of their own, on a free port.

    Args:
        variables: of the compose file, such as RUN_FILE.
    """

    def __init__(self, **variables: str) -> None:
        self.project = f"offbeat-test-{uuid.uuid4().hex[:8]}"
        # The default index is what the machine's pip goes by; in CI it has torch for the CPU.
        self._environment = {**os.environ, "TORCH_INDEX": "", "OFFBEAT_PORT": "0", **variables}

    def compose(self, *words: str, timeout: float = 120, check: bool = True) -> str:
        done = subprocess.run(
            ["docker", "compose", "--ansi", "never", "--project-name", self.project, *words],
            cwd=ROOT,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        if check and done.returncode:
            raise AssertionError(f"docker compose {' '.join(words)}: {(done.stdout + done.stderr)[-4000:]}")
        return done.stdout

    def up(self, services: Iterable[str] = SERVICES) -> None:
        self.compose("--progress", "plain", "up", "--detach", "--build", *services, timeout=900)

    def down(self) -> float:
        """Stop and remove everything but images and volumes; returns the seconds that it took."""
        before = time.monotonic()
        self.compose("down")
        return time.monotonic() - before

    def remove(self) -> None:
        """Leave nothing behind, in whatever state it is."""
        self.compose("down", "--volumes", "--timeout", "5", check=False)
        images = [f"{self.project}-{name}" for name in ("scheduler", "parameter-server", "worker")]
        subprocess.run(["docker", "image", "rm", *images], capture_output=True, timeout=120, check=False)

    def run_in(self, service: str, *command: str) -> str:
        return self.compose("exec", "--no-TTY", service, *command)

    def log(self, service: str) -> str:
        return self.compose("logs", "--no-log-prefix", "--no-color", service)

    def wait_for_log(self, service: str, text: str, timeout: float, count: int = 1) -> str:
        """The last line with `text`, once `count` lines have it."""
        deadline = time.monotonic() + timeout
        while True:
            log = self.log(service)
            lines = [line for line in log.splitlines() if text in line]
            if len(lines) >= count:
                return lines[-1]
            if time.monotonic() > deadline:
                raise AssertionError(f"{service} did not log '{text}' in {timeout:.0f} s:\n{log[-4000:]}")
            time.sleep(1)

    def containers(self) -> dict[str, dict[str, Any]]:
        """Service -> what the engine knows of its container."""
        ids = self.compose("ps", "--all", "--quiet").split()
        if not ids:
            return {}
        found = json.loads(subprocess.check_output(["docker", "inspect", *ids]))
        return {each["Config"]["Labels"]["com.docker.compose.service"]: each for each in found}

    def wait_until(
        self, all_are: Callable[[dict[str, Any]], bool], timeout: float
    ) -> dict[str, dict[str, Any]]:
        deadline = time.monotonic() + timeout
        while True:
            found = self.containers()
            if all(map(all_are, found.values())):
                return found
            if time.monotonic() > deadline:
                states = {service: each["State"] for service, each in found.items()}
                raise AssertionError(f"not after {timeout:.0f} s: {json.dumps(states, indent=1)[-4000:]}")
            time.sleep(1)

    def address(self, service: str, network: str, port: int) -> str:
        """Where this machine reaches a container's port that is not published."""
        networks = self.containers()[service]["NetworkSettings"]["Networks"]
        return f"{networks[f'{self.project}_{network}']['IPAddress']}:{port}"

    def published(self, service: str, port: int) -> str:
        return self.compose("port", service, str(port)).strip()
