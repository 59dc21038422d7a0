"""What can be said of compose file, dashboard and Dockerfiles without an engine."""

import json
import re
from pathlib import Path

import pytest
import yaml

from offbeat_core.config import RunSettings, WorkerSettings, read_yaml, validate

ROOT = Path(__file__).parents[2]
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
PROMETHEUS = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text())
GRAFANA = ROOT / "deploy/grafana"
DASHBOARD = json.loads((GRAFANA / "dashboards/offbeat.json").read_text())
WORKERS = [name for name in COMPOSE["services"] if name.startswith("worker-")]


def test_ports_are_published_on_loopback_alone():
    published = [port for service in COMPOSE["services"].values() for port in service.get("ports", [])]
    assert published
    assert all(port.startswith("127.0.0.1:") for port in published)


def test_workers_are_unequal_and_hold_different_parts_of_the_data():
    services = [COMPOSE["services"][name] for name in WORKERS]
    assert len({service["cpus"] for service in services}) == len(services) == 3
    shards = sorted(int(service["environment"]["OFFBEAT_SHARD"]) for service in services)
    assert shards == [0, 1, 2]
    assert {service["environment"]["OFFBEAT_SHARDS"] for service in services} == {"3"}


def test_the_run_file_of_the_compose_file_is_valid_and_waits_for_all_workers():
    run = validate(RunSettings, read_yaml(ROOT / "deploy/compose/run.yaml", "run"), "run")
    assert run.workers == len(WORKERS)
    assert run.target is not None


def test_variables_of_the_compose_file_are_settings_of_a_service():
    for name in (*WORKERS, "evaluator"):
        for variable in COMPOSE["services"][name]["environment"]:
            assert variable.removeprefix("OFFBEAT_").lower() in WorkerSettings.model_fields, variable


def test_without_a_samples_file_the_parameter_server_is_given_none_and_a_wrong_name_makes_no_folder():
    service = COMPOSE["services"]["parameter-server"]
    (mount,) = (volume for volume in service["volumes"] if isinstance(volume, dict))
    assert mount["source"] == "${SAMPLES_FILE:-/dev/null}"
    assert mount["bind"] == {"create_host_path": False}
    assert service["environment"]["OFFBEAT_SAMPLES"] == f"${{SAMPLES_FILE:+{mount['target']}}}"


def test_prometheus_scrapes_what_the_services_serve():
    targets = {
        target for job in PROMETHEUS["scrape_configs"] for target in job["static_configs"][0]["targets"]
    }
    served = set()
    for name, role in (("scheduler", "scheduler"), ("parameter-server", "ps")):
        dockerfile = (ROOT / f"services/{role}/Dockerfile").read_text()
        served |= {
            f"{name}:{port}" for port in re.findall(r"OFFBEAT_METRICS_LISTEN=0\.0\.0\.0:(\d+)", dockerfile)
        }
    assert targets == served


def test_the_dashboard_asks_the_data_source_that_is_provisioned():
    (source,) = yaml.safe_load((GRAFANA / "provisioning/datasources/prometheus.yaml").read_text())[
        "datasources"
    ]
    asked = {target["datasource"]["uid"] for panel in DASHBOARD["panels"] for target in panel["targets"]}
    assert asked == {source["uid"]}
    assert source["url"] == "http://prometheus:9090"
    assert source["jsonData"]["timeInterval"] == PROMETHEUS["global"]["scrape_interval"]


def test_panels_of_the_dashboard_do_not_overlap():
    taken = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert place["x"] + place["w"] <= 24
        taken |= cells


@pytest.mark.parametrize("role", ["ps", "scheduler", "worker"])
def test_a_service_is_not_root_and_gets_signals_itself(role):
    text = (ROOT / f"services/{role}/Dockerfile").read_text()
    assert re.search(r"^USER offbeat$", text, re.M)
    assert re.search(rf'^ENTRYPOINT \["offbeat-{role}"\]$', text, re.M)
    assert re.search(r"^HEALTHCHECK .*CMD \[", text, re.M)
    assert f"ARG ROLE={role}\n" in text
