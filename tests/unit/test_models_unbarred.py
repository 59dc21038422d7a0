"""SSP, ASP, FedBuff: updates enter without a barrier."""

import pytest

from offbeat_core.errors import OffbeatError
from offbeat_scheduler.models import make_model
from offbeat_scheduler.plan_check import check
from offbeat_scheduler.sync import Device, Fleet, Fold, Gate, Steps
from support.virtual import run_settings, trio


def plan(sync, devices=None):
    run = run_settings(sync)
    fleet = Fleet(0.0, trio() if devices is None else devices)
    made = make_model(run.sync, run).decide(fleet)
    check(made, fleet)
    return made


@pytest.mark.parametrize(("sync", "slack"), [("ssp", 3), ("ssp:40", 40), ({"ssp": {"staleness": 0}}, 0)])
def test_ssp_holds_whoever_is_too_far_ahead_of_the_slowest(sync, slack):
    made = plan(sync)
    assert made.triggers == dict.fromkeys(trio(), Steps(1))
    assert made.gate == Gate(slack=slack)
    assert made.fold == Fold(when="at_once", weight="equal")
    assert set(made.cohort) == set(trio())
    assert not made.overlap


def test_asp_waits_for_nobody():
    made = plan("asp")
    assert made.triggers == dict.fromkeys(trio(), Steps(1))
    assert made.gate == Gate()
    assert made.fold == Fold(when="at_once", weight="equal")
    assert not made.cohort
    assert not made.overlap


def test_asps_weight_and_overlap_are_options():
    assert plan("asp:per_step").fold.weight == "per_step"
    assert plan({"asp": {"overlap": True}}).overlap


def test_fedbuff_buffers_half_a_fleet_at_a_rate_that_counts_each_device_fully():
    made = plan("fedbuff")
    assert made.gate == Gate()
    assert made.triggers["slow"] == Steps(8)
    assert (made.fold.when, made.fold.every_k, made.fold.staleness_power) == ("every_k", 2, 0.5)
    assert made.fold.server_rate == pytest.approx(2 / 3)


def test_fedbuffs_options_are_taken():
    given = {
        "k": 10,
        "tau": 4,
        "server_rate": 0.3,
        "staleness_power": 0,
        "weight": "samples",
        "overlap": True,
    }
    made = plan({"fedbuff": given})
    assert made.fold == Fold("every_k", "samples", every_k=10, server_rate=0.3)
    assert made.triggers["slow"] == Steps(4)
    assert made.overlap


def test_a_server_rate_that_cannot_be_followed_is_said():
    assert "K/M = 0.667" in plan({"fedbuff": {"server_rate": 1}}).notes[0]
    assert not plan({"fedbuff": {"server_rate": 0.6}}).notes


def test_a_lone_device_fills_fedbuffs_buffer_by_itself():
    assert plan("fedbuff", {"only": Device("only")}).fold.every_k == 1


@pytest.mark.parametrize(
    ("sync", "said"),
    [
        ("ssp:-1", "staleness: '-1'"),
        ("asp:data", "weight: 'data'"),
        ("fedbuff:0", "k: '0'"),
        ({"fedbuff": {"server_rate": 0}}, "server_rate: 0"),
        ({"fedbuff": {"staleness_power": -1}}, "staleness_power: -1"),
    ],
)
def test_options_that_cannot_be_are_refused_with_their_value(sync, said):
    with pytest.raises(OffbeatError, match=said):
        plan(sync)


@pytest.mark.parametrize("sync", ["ssp", "asp", "fedbuff", "bsp", "fixed-adacomm:100"])
def test_m_outlasts_three_intervals_of_the_slowest(sync):
    devices = {"slow": Device("slow", step_s=7.0, commit_s=3.0), "fast": Device("fast", step_s=0.1)}
    made = plan(sync, devices)
    assert made.membership_window_s >= 3 * (7.0 * made.triggers["slow"].steps + 3.0) - 1


@pytest.mark.parametrize("sync", ["ssp", "asp", "fedbuff", "bsp", "fixed-adacomm"])
def test_jitter_of_what_is_measured_makes_no_new_plan(sync):
    run = run_settings(sync)
    model = make_model(run.sync, run)
    plans = [
        model.decide(Fleet(now_s, {"a": Device("a", step_s=0.301 + now_s / 1e4, commit_s=0.02)}))
        for now_s in range(5)
    ]
    assert all(made == plans[0] for made in plans)
