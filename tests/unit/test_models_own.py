"""A user's own model: a file on the scheduler's machine, that a run may name only where that is allowed."""

import os
from functools import partial
from pathlib import Path

import pytest

from offbeat_cli.simulator import PowerLaw, VirtualDevice, simulate
from offbeat_cli.simulator.entries import prepare
from offbeat_cli.simulator.scenario import Scenario
from offbeat_core.config import RunSettings, SchedulerSettings, SyncSpec, validate
from offbeat_core.errors import OffbeatError
from offbeat_scheduler.events import HubState, RunSubmitted, read_event, record
from offbeat_scheduler.hub import Hub
from offbeat_scheduler.main import make_service
from offbeat_scheduler.models import ANYWHERE, make_model
from offbeat_scheduler.submission import read_run
from offbeat_scheduler.sync import Fleet, Steps
from support.scheduler_world import World
from support.virtual import run_settings, trio

ROOT = Path(__file__).resolve().parents[2]

GOOD = """
from __future__ import annotations

from pydantic import Field

from offbeat_core.config import Settings
from offbeat_scheduler.sync import Plan, Steps, SyncModel


class EveryFew(SyncModel):
    short_option = "steps"

    class Options(Settings):
        steps: int = Field(2, ge=1)

    def decide(self, fleet):
        return Plan({name: Steps(self.options.steps) for name in fleet.devices})
"""

PLAIN = """
from offbeat_scheduler.sync import Plan, Steps, SyncModel
class Plain(SyncModel):
    def decide(self, fleet):
        return Plan({name: Steps(1) for name in fleet.devices})
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "models").mkdir()
    return tmp_path / "models"


def written(folder, text, name="mine.py"):
    path = folder / name
    path.write_text(text)
    return path


def make(sync, allowed=ANYWHERE):
    run = run_settings(sync)
    return make_model(run.sync, run, allowed)


# ---- naming it ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sync", "model", "options"),
    [
        ("mine.py:EveryFew", "mine.py:EveryFew", {}),
        ("sub/mine.py", "sub/mine.py", {}),
        ("mine.py:EveryFew:3", "mine.py:EveryFew", {"": "3"}),
        ({"/m/mine.py:EveryFew": {"steps": 3}}, "/m/mine.py:EveryFew", {"steps": 3}),
        ({"model": "mine.py:EveryFew", "options": {"steps": 3}}, "mine.py:EveryFew", {"steps": 3}),
        ("ssp:3", "ssp", {"": "3"}),
    ],
)
def test_a_run_names_file_and_class(sync, model, options):
    spec = run_settings(sync).sync
    assert (spec.model, spec.options) == (model, options)


def test_a_path_can_be_seen_from_another_folder(tmp_path):
    spec = SyncSpec(model="sub/mine.py:EveryFew").seen_from(tmp_path)
    assert spec.own == (str(tmp_path / "sub" / "mine.py"), "EveryFew")
    assert SyncSpec(model="bsp").seen_from(tmp_path).model == "bsp"


@pytest.mark.parametrize(
    ("end", "steps"), [(":EveryFew", 2), ("", 2), (":EveryFew:5", 5)], ids=["named", "alone", "value"]
)
def test_a_file_is_a_model_like_any_other(folder, end, steps):
    model = make(f"{written(folder, GOOD)}{end}")
    assert model.decide(Fleet(0.0, trio())).triggers["slow"] == Steps(steps)
    assert model.name == "EveryFew"


def test_options_are_checked_like_those_of_other_models(folder):
    path = written(folder, GOOD)
    assert make({f"{path}:EveryFew": {"steps": 7}}).options.steps == 7
    with pytest.raises(OffbeatError, match="did you mean 'steps'"):
        make({f"{path}:EveryFew": {"step": 7}})
    with pytest.raises(OffbeatError, match="steps: 0"):
        make({f"{path}:EveryFew": {"steps": 0}})


def test_a_model_need_not_declare_options_or_a_name(folder):
    path = written(folder, PLAIN)
    assert make(str(path)).name == "Plain"
    with pytest.raises(OffbeatError, match="takes no value"):
        make(f"{path}:Plain:3")


def test_an_edited_file_is_another_model(folder):
    path = written(folder, GOOD)
    assert make(str(path)).options.steps == 2
    written(folder, GOOD.replace("Field(2", "Field(9"))
    assert make(str(path)).options.steps == 9


# ---- what can be wrong with it ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "name", "said"),
    [
        (GOOD, "EveryFwe", ["there is no 'EveryFwe'", "did you mean 'EveryFew'"]),
        (GOOD, "Settings", ["'Settings' is no synchronization model"]),
        ("x = 1\ndef (:\n", "X", ["mine.py:2", "invalid syntax"]),
        ("x = 1\ny = x / 0\n", "X", ["mine.py:2", "ZeroDivisionError"]),
        ("import not_there_at_all\n", "X", ["mine.py:1", "ModuleNotFoundError"]),
        ("import sys\nsys.exit(3)\n", "X", ["mine.py:2", "SystemExit"]),
        ("a\0b", "X", ["mine.py"]),
        (GOOD.replace("def decide", "def decyde"), "EveryFew", ["has no method 'decide'"]),
        (GOOD.replace("Options(Settings)", "Options"), "EveryFew", ["Options is not made from Settings"]),
        (GOOD.replace('= "steps"', '= "stops"'), "EveryFew", ["short_option", "'stops'"]),
        (
            GOOD + "\n    def __init__(self, options, run):\n        raise RuntimeError('no')\n",
            "EveryFew",
            ["mine.py:20", "RuntimeError: no"],
        ),
        ("", "", ["holds no model"]),
        (GOOD + PLAIN, "", ["several models: EveryFew, Plain"]),
    ],
)
def test_what_is_wrong_is_said_with_file_and_line(folder, text, name, said):
    path = written(folder, text)
    with pytest.raises(OffbeatError) as error:
        make(f"{path}:{name}" if name else str(path))
    assert str(path) in str(error.value)
    for part in said:
        assert part in str(error.value), str(error.value)


def test_a_model_that_is_only_imported_is_not_the_files(folder):
    path = written(folder, "from offbeat_scheduler.models.bsp import BSP\n")
    with pytest.raises(OffbeatError, match="only imported there"):
        make(f"{path}:BSP")
    assert make("bsp").digest == ""


@pytest.mark.parametrize("file", ["a\0b.py", "a" * 5000 + ".py", "a" * 300 + ".py"])
def test_what_can_be_no_path_is_refused(folder, file):
    for allowed in ([folder], ANYWHERE):
        with pytest.raises(OffbeatError, match="sync: "):
            make({"model": f"{file}:X"}, allowed)


def test_a_pipe_is_not_read(folder):
    os.mkfifo(folder / "pipe.py")
    with pytest.raises(OffbeatError, match="is not a file"):
        make("pipe.py", [folder])


def test_a_model_that_fails_in_a_run_ends_it_and_says_in_which_line(folder):
    path = written(folder, PLAIN.replace("return Plan", "fleet = fleet.devises\n        return Plan"))
    world = World(make_model=partial(make_model, own_files=[folder]))
    world.training(sync=str(path))
    assert f"AttributeError: 'Fleet' object has no attribute 'devises' ({path}:5)" in world.status().message


@pytest.mark.parametrize("name", ["none.py", "folder.py"])
def test_a_file_that_cannot_be_read_is_named(folder, name):
    (folder / "folder.py").mkdir()
    with pytest.raises(OffbeatError, match=name):
        make(f"{folder / name}:X")


# ---- where it may come from: a file is executed, and a run comes over the network ----------------------


def test_without_leave_no_file_is_executed(folder, tmp_path):
    mark = tmp_path / "executed"
    path = written(folder, f"open({str(mark)!r}, 'w')\n{PLAIN}")
    with pytest.raises(OffbeatError, match="none of the models that this scheduler may load"):
        make(f"{path}:Plain", allowed=())
    assert not mark.exists()


def test_a_folder_allows_what_is_in_it_by_name_and_by_path(folder):
    path = written(folder, GOOD)
    (folder / "deep").mkdir()
    written(folder / "deep", PLAIN, "deeper.py")
    for sync in ("mine.py:EveryFew", f"{path}:EveryFew", "deep/deeper.py", "./mine.py"):
        assert make(sync, [folder])


def test_a_file_allows_itself_by_name_and_by_path(folder):
    path = written(folder, GOOD)
    written(folder, PLAIN, "other.py")
    assert make("mine.py", [path])
    assert make(str(path), [path])
    with pytest.raises(OffbeatError, match="may load"):
        make(str(folder / "other.py"), [path])


@pytest.mark.parametrize("sync", ["../outside.py", "{outside}", "deep/../../outside.py", "link.py"])
def test_no_way_leads_out_of_the_folder(folder, tmp_path, sync):
    outside = written(tmp_path, PLAIN, "outside.py")
    (folder / "deep").mkdir()
    (folder / "link.py").symlink_to(outside)
    with pytest.raises(OffbeatError, match="may load") as error:
        make(sync.format(outside=outside), [folder])
    with pytest.raises(OffbeatError) as none:
        make("../not_there.py", [folder])
    assert error.value.remedy == none.value.remedy  # whether a file exists elsewhere is nobody's business


def test_a_submitted_run_loads_only_what_the_schedulers_configuration_allows(folder, tmp_path):
    path = written(folder, GOOD)
    outside = written(tmp_path, PLAIN, "outside.py")

    def service(**settings):
        return make_service(validate(SchedulerSettings, {"folder": tmp_path / "runs", **settings}, "test"))

    for refused in (path, outside):
        with pytest.raises(OffbeatError, match="may load"):
            service().read(f"task: digits\nsync: {refused}\n")
    allowing = service(models=[folder])
    assert allowing.read("task: digits\nsync: mine.py:EveryFew\n").settings.sync.own == (
        "mine.py",
        "EveryFew",
    )
    with pytest.raises(OffbeatError, match="may load"):
        allowing.read(f"task: digits\nsync: {outside}\n")
    with pytest.raises(OffbeatError, match=r"models: .*not_there"):
        service(models=[folder / "not_there"])


# ---- the run's record -----------------------------------------------------------------------------------


def test_the_run_says_which_file_it_was_and_a_replay_with_another_one_says_so(folder):
    path = written(folder, GOOD)
    makes = partial(make_model, own_files=[folder])
    submission = read_run(f"task: digits\nsync: {path}:EveryFew:4\n", makes)
    event = read_event(record(RunSubmitted("run-1", submission.settings)))
    assert len(event.settings.sync.digest) == 64
    again = read_run(submission.effective_yaml, makes)
    assert make_model(again.settings.sync, again.settings, [folder]).options.steps == 4
    hub = Hub(HubState("s"), makes)
    hub.handle(event, 0.0)

    written(folder, GOOD + "# changed\n")
    for attempt in (
        lambda: Hub(HubState("s"), makes).handle(event, 0.0),
        lambda: read_run(again.effective_yaml, makes),
    ):
        with pytest.raises(OffbeatError, match=r"sync\.digest"):
            attempt()


# ---- the example of docs/models.md -------------------------------------------------------------------


def test_the_example_in_the_docs_is_the_file_in_examples():
    file = ROOT / "examples" / "models" / "patient_barrier.py"
    assert file.read_text() in (ROOT / "docs" / "models.md").read_text()


def test_the_examples_scenario_finds_the_file_beside_it():
    scenario = Scenario.read(ROOT / "examples" / "models" / "patience.yaml")
    assert [type(prepare(scenario, entry, 1).model).__name__ for entry in scenario.compare] == [
        "FixedAdaComm",
        "PatientBarrier",
        "ADSP",
    ]


def test_the_example_waits_for_the_typical_device_and_goes_on_without_the_slowest():
    sync = {"examples/models/patient_barrier.py:PatientBarrier": {"patience": 1.3}}
    run = validate(RunSettings, {"task": "digits", "sync": sync, "check_period_s": 6.0}, "run")
    run = run.model_copy(update={"sync": run.sync.seen_from(ROOT)})
    fleet = [VirtualDevice(f"d{i}", 0.1, 0.05, 0.001) for i in range(4)]
    model = make_model(run.sync, run, [ROOT / "examples" / "models"])
    result = simulate(
        run, [*fleet, VirtualDevice("stone", 2.0, 0.05, 0.001)], PowerLaw(0.02), max_s=120, model=model
    )
    counts = {name: device.commits for name, device in result.devices.items()}
    assert counts["d0"] > 80
    assert 4 <= counts["stone"] <= 8
