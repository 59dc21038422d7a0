"""The report: made from the event log, whole in itself."""

import itertools
import json
import re
from html.parser import HTMLParser

import pytest

from offbeat_cli import history, report
from offbeat_core.errors import OffbeatError

RUN = "name: digits\ntask: {name: digits}\nworkers: 2\ntarget: {accuracy: 0.9}\nsync: adsp\n"


def _log(seconds=20, began=5.0):
    """A log as the scheduler writes it: fields at zero are left out."""
    lines = [
        {"t": 0.0, "state": {"revision": 3}},
        {"t": 0.0, "event": "RunSubmitted", "run_id": "digits-ab12", "settings": {"training": {"batch": 32}}},
        {"t": 0.0, "decision": "PhaseChanged", "phase": "waiting", "outcome": "", "message": "workers"},
        {
            "t": began - 1,
            "event": "WorkerReported",
            "name": "worker-1",
            "report": {"run_id": "older-run", "steps": 9999, "phase": "TRAINING"},
        },
        {"t": began, "decision": "PlanMade", "generation": 1, "plan": _plan(2, 3.0, searching=True)},
        {"t": began, "decision": "PhaseChanged", "phase": "searching", "outcome": "", "message": ""},
    ]
    for second in range(1, seconds + 1):
        now = began + second
        for name, speed in (("worker-1", 1), ("worker-2", 3)):
            steps = second * speed * 3
            lines.append(
                {
                    "t": now,
                    "event": "WorkerReported",
                    "name": name,
                    "incarnation": "i",
                    "report": {
                        "run_id": "digits-ab12",
                        "phase": "TRAINING",
                        "steps": steps,
                        "train_loss": 2.0 / second,
                        "step_s": 0.33 / speed,
                        "time": {"compute_s": 0.1 * second, "paced_s": 0.9 * second},
                    },
                }
            )
        counts = [
            {"worker": name, "commits": second // 2, "steps": second // 2 * 2 * speed * 3}
            for name, speed in (("worker-1", 1), ("worker-2", 3))
        ]
        lines.append(
            {"t": now, "event": "ServerReported", "report": {"run_id": "digits-ab12", "counts": counts}}
        )
        evaluation = {
            "run_id": "digits-ab12",
            "version": second,
            "loss": 2.0 / second,
            "metric": 1 - 1 / second,
            "metric_name": "accuracy",
        }
        lines.append({"t": now, "event": "Evaluated", "name": "evaluator", "report": evaluation})
    probe = {"rate": 2.0, "interval_s": 3.0, "start_s": 0.0, "end_s": 6.0, "loss_start": 2, "loss_end": 1}
    lines += [
        {"t": began + 6, "decision": "ProbeEnded", "probe": {**probe, "reward": 0.1}},
        {
            "t": began + 12,
            "decision": "ProbeEnded",
            "probe": {**probe, "rate": 4.0, "start_s": 6.0, "reward": 0.3, "chosen": True},
        },
        {"t": began + 12, "decision": "PlanMade", "generation": 1, "plan": _plan(4, 1.5, searching=False)},
        {"t": began + 12, "decision": "PhaseChanged", "phase": "training", "outcome": "", "message": ""},
        {
            "t": began + seconds,
            "decision": "PhaseChanged",
            "phase": "finishing",
            "outcome": "reached",
            "message": "accuracy 0.9",
        },
        {
            "t": began + seconds + 1,
            "decision": "PhaseChanged",
            "phase": "idle",
            "outcome": "reached",
            "message": "accuracy 0.9",
        },
    ]
    lines.sort(key=lambda line: line["t"])
    return lines


def _plan(rate, interval, *, searching):
    return {"commit_rate": rate, "interval_s": interval, "searching": searching, "triggers": {}}


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "events.jsonl").write_text("".join(json.dumps(line) + "\n" for line in _log()))
    (tmp_path / "run.yaml").write_text(RUN)
    return tmp_path


def test_times_count_from_the_beginning_of_training(folder):
    found = history.read(folder / "events.jsonl")
    assert found.evaluations[0].at_s == pytest.approx(1.0)
    assert found.trained_s == pytest.approx(20.0)
    assert found.rates[0].at_s == 0.0


def test_an_evaluation_that_is_said_again_counts_once(folder):
    path = folder / "events.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(line * (2 if '"Evaluated"' in line else 1) for line in lines))
    assert len(history.read(path).evaluations) == 20


def test_totals_are_those_of_the_last_report_of_this_run(folder):
    found = history.read(folder / "events.jsonl")
    assert {name: device.steps for name, device in found.devices.items()} == {"worker-1": 60, "worker-2": 180}
    assert found.devices["worker-2"].commits == 10
    assert found.devices["worker-1"].share("paced") == pytest.approx(0.9)
    assert found.devices["worker-1"].share("wait") == 0.0
    assert (found.outcome, found.metric_name) == ("reached", "accuracy")


def test_probes_and_rates_are_read(folder):
    found = history.read(folder / "events.jsonl")
    assert [(probe.rate, probe.reward, probe.chosen) for probe in found.probes] == [
        (2, 0.1, False),
        (4, 0.3, True),
    ]
    assert [(rate.rate, rate.searching) for rate in found.rates] == [(2, True), (4, False)]


def test_a_log_that_was_cut_in_a_line_is_read_up_to_there(folder):
    path = folder / "events.jsonl"
    whole = path.read_text()
    path.write_text(whole[: len(whole) // 2])
    found = history.read(path)
    assert 0 < len(found.evaluations) < 20
    assert 0 < found.trained_s < 20


class _Page(HTMLParser):
    VOID = ("meta", "br", "hr", "img", "link", "input")

    def __init__(self):
        super().__init__()
        self.open, self.tags, self.links, self.ids = [], [], [], []

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        values = dict(attributes)
        self.links += [
            value
            for key, value in values.items()
            if key in ("src", "href", "xlink:href") and not value.startswith("#")
        ]
        if tag == "svg":
            self.ids.append([])
        if "id" in values and self.ids:
            self.ids[-1].append(values["id"])
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        if tag not in self.VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_the_report_is_one_file_that_needs_nothing_else(folder):
    text = report.write(folder).read_text(encoding="utf-8")
    page = _Page()
    page.feed(text)
    assert page.open == []
    assert page.links == []
    assert page.tags.count("svg") == 4
    assert "@import" not in text


def test_the_report_says_how_it_ended_and_how_to_load_the_model(folder):
    text = report.write(folder).read_text(encoding="utf-8")
    for part in ("20.0 s", "to accuracy 0.9", "worker-2", "load_state_dict", "accuracy: 0.9", "digits-ab12"):
        assert part in text


def test_an_own_model_is_named_without_its_folder(folder):
    (folder / "run.yaml").write_text(RUN.replace("sync: adsp", "sync: /home/me/mine.py:Mine"))
    assert "synchronized by mine.py:Mine." in report.write(folder).read_text(encoding="utf-8")


def test_what_others_named_is_escaped(folder):
    path = folder / "events.jsonl"
    path.write_text(path.read_text().replace("worker-2", "<script>x</script>"))
    assert "<script>" not in report.write(folder).read_text(encoding="utf-8")


def test_a_run_without_evaluator_search_or_end_has_a_report_too(folder):
    path = folder / "events.jsonl"
    kept = [
        line
        for line in _log()
        if line.get("event") != "Evaluated"
        and line.get("decision") != "ProbeEnded"
        and line.get("phase") not in ("finishing", "idle")
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in kept))
    (folder / "run.yaml").unlink()
    text = report.write(folder).read_text(encoding="utf-8")
    assert "no evaluator attended" in text
    assert text.count("<svg") == 3


def _with_plans(folder, *plans, solve_s=()):
    """The log of a run without search, whose plans are those given: one each second from the second on,
    each upon a tick that says in how many seconds its allocation was solved."""
    lines = [line for line in _log() if line.get("decision") not in ("ProbeEnded", "PlanMade")]
    for second, (plan, seconds) in enumerate(itertools.zip_longest(plans, solve_s, fillvalue=0.0), start=1):
        lines.append({"t": 5.0 + second, "event": "Tick", "solve_s": seconds})
        lines.append(
            {"t": 5.0 + second, "decision": "PlanMade", "plan": {**_plan(0, 0, searching=False), **plan}}
        )
    lines.sort(key=lambda line: line["t"])
    (folder / "events.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    text = report.write(folder).read_text(encoding="utf-8")
    assert "The search of the commit rate" not in text
    table = re.search(r"Who trained how much.*?</section>", text, flags=re.DOTALL)
    if table is None:
        return text, []
    rows = re.findall(r"<tr>(.*?)</tr>", table[0])
    return table[0], [re.findall(r"<t[hd]>(.*?)</t[hd]>", row) for row in rows]


def _steps(**steps):
    return {name.replace("_", "-"): {"Steps": {"steps": count}} for name, count in steps.items()}


def test_a_barrier_that_treats_all_alike_needs_no_table_of_plans(folder):
    plan = {"triggers": _steps(worker_1=8, worker_2=8)}
    text, rows = _with_plans(folder, plan, plan)
    assert rows == []
    assert text.count("<svg") == 3


def test_rounds_are_counted_by_who_took_part(folder):
    text, rows = _with_plans(
        folder,
        {"triggers": _steps(worker_1=8), "resting": ["worker-2"], "round": 1},
        {"triggers": _steps(worker_1=8), "resting": ["worker-2"], "round": 1},
        {"triggers": _steps(worker_1=8, worker_2=8), "round": 2},
    )
    assert "2 rounds" in text
    assert rows == [["device", "rounds"], ["worker-1", "2"], ["worker-2", "1"]]


def test_local_updates_that_change_are_drawn_and_named(folder):
    text, rows = _with_plans(
        folder,
        {"triggers": _steps(worker_1=16, worker_2=4)},
        {"triggers": _steps(worker_1=32, worker_2=4)},
        {"triggers": _steps(worker_1=8, worker_2=4)},
    )
    assert text.count("<svg") == 1
    assert rows[1:] == [["worker-1", "16 → 8 (8 – 32)"], ["worker-2", "4"]]


def test_groups_and_batches_are_shown_for_each_device(folder):
    _, rows = _with_plans(
        folder,
        {
            "triggers": _steps(worker_1=4, worker_2=12, worker_3=12),
            "groups": [
                {"members": ["worker-2", "worker-3"], "gate": {}},
                {"members": ["worker-1"], "gate": {}},
            ],
            "batches": {"worker-1": 8},
        },
    )
    assert rows == [
        ["device", "local updates a commit", "group", "batch"],
        ["worker-1", "4", "1", "8"],
        ["worker-2", "12", "2", "-"],
        ["worker-3", "12", "2", "-"],
    ]


def test_allotted_samples_and_passes_are_shown_with_what_was_promised(folder):
    allotment = {"cycle_s": 6.0, "idle_share": 0.01, "max_staleness": 2, "average_staleness": 1.0}
    passes = {"worker-1": {"Passes": {"passes": 1}}, "worker-2": {"Passes": {"passes": 3}}}
    text, rows = _with_plans(
        folder,
        {
            "triggers": {name: {"Passes": {"passes": 1}} for name in passes},
            "samples": {"worker-1": 64},
            "round": 1,
        },
        {
            "triggers": passes,
            "samples": {"worker-1": 240, "worker-2": 320},
            "round": 2,
            "allotment": allotment,
        },
        solve_s=[0.0, 0.0125],
    )
    assert rows == [
        ["device", "rounds", "passes a cycle", "samples a pass"],
        ["worker-1", "2", "1", "64 → 240"],
        ["worker-2", "2", "1 → 3", "320"],
    ]
    assert "idle for 1.0% of it" in text
    assert "differed by 2 at most" in text
    assert "Solving an allocation took 12.5 ms at most." in text


def test_batches_by_goodput_are_shown_with_planned_and_observed_local_updates(folder):
    def allotted(spread, **updates):
        found = {"cycle_s": 2.0, "idle_share": 0.0, "max_staleness": spread, "average_staleness": spread}
        return {**found, "updates": {name.replace("_", "-"): value for name, value in updates.items()}}

    grids = {name: {"Grid": {"interval_s": 2.0, "origin_s": 0.0}} for name in ("worker-1", "worker-2")}
    first = {"triggers": grids, "batches": {"worker-2": 16}}
    second = {**first, "batches": {"worker-2": 96}, "allotment": allotted(12.5, worker_1=6, worker_2=18.5)}
    text, rows = _with_plans(folder, first, second, second)
    assert rows == [
        ["device", "batch", "updates an interval, planned", "observed"],
        ["worker-1", "32", "6", "6"],
        ["worker-2", "16 → 96", "18.5", "18"],
    ]
    assert "a commit interval was 2 s" in text
    assert "differed, as planned, by 12.5 at most and 12.5 on average; observed: 12 and 12." in text


def test_a_folder_without_a_log_is_an_error(tmp_path):
    with pytest.raises(OffbeatError, match=re.escape(str(tmp_path / "events.jsonl"))):
        report.write(tmp_path)
