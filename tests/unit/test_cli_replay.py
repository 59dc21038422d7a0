"""`offbeat replay`: the same decisions, or where they first differ."""

import json

import pytest

from offbeat_cli.simulator.replaying import replay
from offbeat_core.errors import OffbeatError
from offbeat_scheduler.models import make_model
from support.scheduler_world import World


@pytest.fixture
def log(tmp_path):
    """The event log of a run under fedavg, with two workers."""
    world = World(tmp_path, make_model=make_model)
    world.training(2, sync={"fedavg": {"fraction": 0.5}})
    world.wait(20)
    world.stop()
    path = tmp_path / "events.jsonl"
    path.write_text("".join(world.log_lines()))
    return path


def test_the_same_decisions_are_said_to_be_the_same(log, capsys):
    assert replay(log) == 0
    assert capsys.readouterr().out.startswith("the same: ")
    assert replay(log.parent) == 0, "the folder that has it will do"


def test_the_first_difference_is_shown_where_it_stands(log, capsys):
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    plan = next(line for line in lines if line.get("decision") == "PlanMade")
    plan["plan"]["gate"]["slack"] = 7
    log.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert replay(log) == 1
    assert capsys.readouterr().out.splitlines()[1:] == [
        "  in PlanMade.plan.gate.slack",
        "  recorded: 7",
        "  replayed: 0",
    ]


def test_a_decision_that_is_missing_is_a_difference(log, capsys):
    lines = log.read_text().splitlines(keepends=True)
    last = max(number for number, line in enumerate(lines) if '"decision"' in line)
    log.write_text("".join(lines[:last] + lines[last + 1 :]))
    assert replay(log) == 1
    assert "recorded: nothing" in capsys.readouterr().out


@pytest.mark.parametrize("text", ["# a readme\n", '{"t": 0, "event": "RunSubmitted"}\n', ""])
def test_what_is_no_event_log_is_an_error(tmp_path, text):
    path = tmp_path / "events.jsonl"
    path.write_text(text)
    with pytest.raises(OffbeatError, match="event log"):
        replay(path)


def test_a_log_that_is_not_there_is_an_error(tmp_path):
    with pytest.raises(OffbeatError, match="No such file"):
        replay(tmp_path / "absent.jsonl")


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ('"event": "WorkerReported"', '"event": "WorkerSang"', "WorkerSang"),
        ('"lease_s": 10.0', '"lease": 10.0, "lease_s": "long"', "HubState"),
        ('"agents": [', '"agents": [5, ', "HubState"),
        ('"report": {', '"report": {"song": 1, ', "song"),
        ('"settings": {', '"settings": {"song": 1, ', "RunSubmitted"),
    ],
)
def test_a_log_of_another_version_is_an_error_that_names_both(log, before, after, said):
    text = log.read_text()
    assert before in text
    log.write_text(text.replace(before, after).replace('"offbeat_version": ""', '"offbeat_version": "9.9"'))
    with pytest.raises(OffbeatError) as refused:
        replay(log)
    assert said in str(refused.value)
    assert "offbeat 9.9, this is" in str(refused.value)


@pytest.mark.parametrize("line", ["[1]", "5", "[" * 100_000, "{}", '{"t": null}'])
def test_a_garbled_line_is_named(log, line):
    lines = log.read_text().splitlines()
    log.write_text("\n".join([*lines[:5], line, *lines[5:]]) + "\n")
    with pytest.raises(OffbeatError, match="line 6 is no event"):
        replay(log)
