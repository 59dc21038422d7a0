"""What an instance's file may say, what follows from it, and what is said of one that makes no sense."""

import copy
import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from offbeat_core.errors import OffbeatError
from offbeat_scheduler.allocation import physical, solve
from offbeat_scheduler.allocation.instance import Instance
from offbeat_scheduler.allocation.instance_parts import EnergyLimit, LearnerGroup, Link, Task

EXAMPLES = Path(__file__).parents[2] / "examples/allocation"
PUBLISHED = EXAMPLES / "published.yaml"

MEASURED = {
    "mode": "federated",
    "cycle_s": 7.5,
    "samples": 12000,
    "learners": [
        {"name": "pc", "compute_s_per_sample_update": 3.4e-4, "transfer_s_per_sample": 0.0, "fixed_s": 0.09},
        {"name": "pi", "compute_s_per_sample_update": 1.3e-3, "fixed_s": 0.12, "min_samples": 1500},
    ],
}
RADIO = {"bandwidth_hz": 5e6, "transmit_dbm": 23, "distance_m": 50}
PHYSICAL = {
    "mode": "parallelized",
    "cycle_s": 7.5,
    "samples": 6000,
    "task": {"parameters": 280440, "features": 784, "operations_per_sample": 1123736},
    "learners": [{"name": "near", "cpu_hz": 2.4e9, "link": RADIO}],
}
LINK = ("learners", 0, "link")
ENERGY = ("learners", 0, "energy")
ABSENT = object()


def changed(values, path, value):
    """A copy with another value at the path, or without it."""
    values = copy.deepcopy(values)
    *way, last = path
    place = values
    for step in way:
        place = place[step]
    if value is ABSENT:
        del place[last]
    else:
        place[last] = value
    return values


def problem(values):
    return Instance.make(values, "it.yaml").problem()


# ---- physics --------------------------------------------------------------------------------


def test_the_published_setting_has_the_published_coefficients():
    made = Instance.read(PUBLISHED).problem()
    assert made.names[0] == "fast-01"
    assert made.names[-1] == "slow-10"
    fast, slow = made.compute[0], made.compute[-1]
    assert fast == pytest.approx(4.682233e-4, abs=0.5e-10)
    assert slow == pytest.approx(1.605337e-3, abs=0.5e-9)
    assert made.transfer == pytest.approx([3.1615e-5] * 20, abs=0.5e-9)
    assert made.fixed == pytest.approx([0.09047] * 20, abs=0.5e-5)


@pytest.mark.parametrize(
    ("cycle_s", "each", "published"),
    [(7.5, 5, 1.647), (7.5, 10, 3.350), (15, 5, 3.371), (15, 10, 6.798), (30, 10, 13.695)],
)
def test_the_published_setting_has_the_published_optimum(cycle_s, each, published):
    instance = Instance.read(PUBLISHED)
    groups = [group.model_copy(update={"count": each}) for group in instance.learners]
    instance = instance.model_copy(update={"cycle_s": cycle_s, "learners": tuple(groups)})
    found = solve(instance.problem(), "async", "relaxed")
    assert found.tau == pytest.approx(np.full(2 * each, published), abs=0.6e-3)


@given(
    bandwidth_hz=st.floats(1e3, 1e9),
    transmit_dbm=st.floats(-30, 50),
    loss_db=st.floats(0, 150),
)
def test_a_link_carries_what_its_signal_to_noise_ratio_allows(bandwidth_hz, transmit_dbm, loss_db):
    rate = physical.link_rate(bandwidth_hz, transmit_dbm, -174, loss_db)
    ratio_db = transmit_dbm - loss_db - (-174 + 10 * math.log10(bandwidth_hz))
    assert rate == pytest.approx(bandwidth_hz * math.log2(1 + 10 ** (ratio_db / 10)), rel=1e-6)
    # Half the power costs at most one bit per hertz and second, and never nothing.
    weaker = physical.link_rate(bandwidth_hz, transmit_dbm - 10 * math.log10(2), -174, loss_db)
    assert rate - bandwidth_hz * (1 + 1e-9) <= weaker < rate


def test_watts_and_path_loss():
    assert physical.watts(30) == pytest.approx(1.0)
    assert physical.watts(0) == pytest.approx(1e-3)
    assert physical.path_loss_db(1, 40, 20) == 40
    assert physical.path_loss_db(1000, 40, 20) == pytest.approx(100)


SIZES = st.builds(
    physical.TaskSize,
    parameters=st.floats(1, 1e9),
    bits_per_parameter=st.sampled_from([8.0, 16.0, 32.0]),
    parameters_per_sample=st.floats(0, 100),
    features=st.floats(0, 1e6),
    bits_per_feature=st.sampled_from([1.0, 8.0, 32.0]),
)


@given(task=SIZES, rate=st.floats(1e3, 1e10), travel=st.booleans())
def test_a_transfer_takes_the_time_of_its_bits(task, rate, travel):
    found = physical.transfer_s(task, rate, samples_travel=travel)
    model = task.parameters * task.bits_per_parameter
    growth = task.parameters_per_sample * task.bits_per_parameter
    sample = task.features * task.bits_per_feature if travel else 0
    assert found.fixed * rate == pytest.approx(2 * model)
    assert found.per_sample * rate == pytest.approx(sample + 2 * growth)
    # What comes and what goes, at a watt each, are joules as many as seconds.
    comes = physical.transfer_j(task, rate, samples_travel=travel, receive_w=1, transmit_w=0)
    goes = physical.transfer_j(task, rate, samples_travel=travel, receive_w=0, transmit_w=1)
    assert comes.fixed + goes.fixed == pytest.approx(found.fixed)
    assert comes.per_sample + goes.per_sample == pytest.approx(found.per_sample)
    assert goes.per_sample * rate == pytest.approx(growth)


# ---- from a file to arrays --------------------------------------------------------------------


def test_measured_coefficients_are_taken_as_they_are():
    made = problem(MEASURED)
    assert made.names == ("pc", "pi")
    assert made.compute.tolist() == [3.4e-4, 1.3e-3]
    assert made.transfer.tolist() == [0.0, 0.0]
    assert made.fixed.tolist() == [0.09, 0.12]
    assert made.min_samples.tolist() == [1, 1500]
    assert made.max_samples.tolist() == [12000, 12000]
    assert (made.samples, made.cycle_s, made.energy) == (12000, 7.5, None)


def test_a_group_stands_for_so_many_learners_in_the_order_of_the_file():
    values = changed(MEASURED, ("learners", 0, "count"), 10)
    del values["learners"][1]["name"]
    made = problem(values)
    assert made.names == (*(f"pc-{number:02}" for number in range(1, 11)), "g2")
    assert made.compute.tolist() == [3.4e-4] * 10 + [1.3e-3]
    assert made.min_samples.tolist() == [1] * 10 + [1500]


def test_federated_samples_do_not_travel_but_what_the_model_grows_by_does():
    assert problem(PHYSICAL).transfer[0] > 0
    federated = {**PHYSICAL, "mode": "federated"}
    assert problem(federated).transfer[0] == 0
    grows = problem(changed(federated, ("task", "parameters_per_sample"), 2))
    assert grows.transfer[0] == pytest.approx(2 * grows.fixed[0] / 280440)


def test_a_measured_bit_rate_takes_the_place_of_the_radio():
    radio = problem(PHYSICAL)
    rate = 2 * 280440 * 32 / radio.fixed[0]
    measured = problem(changed(PHYSICAL, LINK, {"bit_rate": rate}))
    assert measured.fixed == pytest.approx(radio.fixed)
    assert measured.transfer == pytest.approx(radio.transfer)
    # So does a path loss take that of the distance.
    loss = {**RADIO, "path_loss_db": 7 + 2.1 * math.log10(50)}
    del loss["distance_m"]
    assert problem(changed(PHYSICAL, LINK, loss)).fixed == pytest.approx(radio.fixed)


def test_measured_computing_goes_with_a_link():
    values = changed(PHYSICAL, ("learners", 0, "cpu_hz"), ABSENT)
    values["learners"][0]["compute_s_per_sample_update"] = 2e-4
    del values["task"]["operations_per_sample"]
    assert problem(values).compute.tolist() == [2e-4]


def test_energy_as_measured_and_without_a_limit():
    limit = {"max_j": 50, "compute_j_per_sample_update": 1e-3, "transfer_j_per_sample": 2e-3, "fixed_j": 0.5}
    energy = problem(changed(MEASURED, ENERGY, limit)).energy
    assert energy.per_sample_update.tolist() == [1e-3, 0.0]
    assert energy.per_sample.tolist() == [2e-3, 0.0]
    assert energy.fixed.tolist() == [0.5, 0.0]
    assert energy.limit.tolist() == [50, math.inf]


def test_energy_from_what_device_and_radio_draw():
    limit = {"max_j": 50, "compute_w": 3.0, "transmit_w": 2.0, "receive_w": 1.0}
    made = problem(changed(PHYSICAL, ENERGY, limit))
    assert made.energy.per_sample_update == pytest.approx(3.0 * made.compute)
    assert made.energy.per_sample == pytest.approx(1.0 * made.transfer)  # samples come, and don't go
    assert made.energy.fixed == pytest.approx((2.0 + 1.0) * made.fixed / 2)
    # Sending draws the link's own power, where nothing else is known.
    made = problem(changed(PHYSICAL, ENERGY, {"max_j": 50, "compute_w": 3.0}))
    assert made.energy.fixed == pytest.approx(10**2.3 / 1000 * made.fixed / 2)
    # And what was measured holds.
    made = problem(changed(PHYSICAL, ENERGY, {**limit, "fixed_j": 0.25}))
    assert made.energy.fixed.tolist() == [0.25]
    assert made.energy.per_sample == pytest.approx(1.0 * made.transfer)


def test_the_most_samples_are_all_of_them_unless_the_least_are_more():
    made = problem(changed(MEASURED, ("learners", 1, "min_samples"), 15000))
    assert made.max_samples.tolist() == [12000, 15000]
    assert "too few" in solve(made).reason


@pytest.mark.parametrize("file", sorted(EXAMPLES.glob("*.yaml")), ids=lambda file: file.stem)
def test_the_examples_have_a_solution(file):
    assert solve(Instance.read(file).problem()).feasible


# ---- what is refused ------------------------------------------------------------------------

C2 = ("learners", 0, "compute_s_per_sample_update")


@pytest.mark.parametrize(
    ("path", "value", "parts"),
    [
        (("mode",), ABSENT, ["mode: is missing"]),
        (("mode",), "parallel", ["mode: 'parallel'", "'parallelized'"]),
        (("cycle_s",), 0, ["cycle_s: 0: is zero", "above 0"]),
        (("cycle_s",), -7.5, ["cycle_s: -7.5: is negative", "above 0"]),
        (("cycle_s",), math.nan, ["cycle_s: nan: is not finite", "above 0"]),
        (("cycle_s",), math.inf, ["cycle_s: inf: is not finite"]),
        (("cycle_s",), True, ["cycle_s: True: is no number"]),
        (("cycle_s",), "long", ["cycle_s: 'long': is no number"]),
        (("cycle_s",), [7.5], ["cycle_s: is no number"]),
        (("samples",), 0, ["samples: 0: is zero"]),
        (("samples",), 10.5, ["samples: 10.5: is not whole"]),
        (("samples",), 10**16, ["samples: 10000000000000000: is too many"]),
        (("name",), "a\nb", ["name:", "control character"]),
        (("extra",), 1, ["extra: unknown key", "cycle_s"]),
        (("learners",), ABSENT, ["learners: is missing"]),
        (("learners",), [], ["learners: there are none"]),
        (("learners",), {"pc": 1}, ["learners: is no list"]),
        (("learners", 0), 3, ["learners.0: 3"]),
        (("learners", 0, "name"), "pi", ["learners: 2 are called 'pi'", "different names"]),
        (("learners", 0, "name"), "p c", ["learners.0.name: 'p c'", "letters"]),
        (("learners", 0, "count"), 0, ["learners.0.count: 0: is zero"]),
        (("learners", 0, "count"), 10**9, ["learners.0.count: 1000000000: is too many"]),
        (("learners", 0, "count"), 10**6, ["learners: 1000001 are too many"]),
        (C2, 0, ["learners.0.compute_s_per_sample_update: 0: is zero", "seconds above 0"]),
        (C2, -1e-3, ["learners.0.compute_s_per_sample_update: -0.001: is negative", "seconds above 0"]),
        (C2, math.nan, ["learners.0.compute_s_per_sample_update: nan: is not finite"]),
        (C2, ABSENT, ["learners.0", "compute_s_per_sample_update", "cpu_hz"]),
        (("learners", 0, "cpu_hz"), 1e9, ["learners.0", "one of", "cpu_hz"]),
        (("learners", 0, "fixed_s"), ABSENT, ["learners.0", "fixed_s", "link"]),
        (("learners", 0, "fixed_s"), -1, ["learners.0.fixed_s: -1: is negative", "0 or more seconds"]),
        (("learners", 0, "transfer_s_per_sample"), -1, ["transfer_s_per_sample: -1: is negative"]),
        (("learners", 0, "min_samples"), 0, ["learners.0.min_samples: 0: is zero"]),
        (("learners", 0, "min_samles"), 3, ["learners.0.min_samles: unknown key", "'min_samples'"]),
        (("learners", 1, "max_samples"), 3, ["learners.1: min_samples: 1500 is above max_samples 3"]),
        (ENERGY, {"max_j": 1}, ["learners.0.energy", "compute_j_per_sample_update", "compute_w"]),
        (ENERGY, {"max_j": 0, "compute_w": 1}, ["learners.0.energy.max_j: 0: is zero"]),
        (ENERGY, {"max_j": 1, "compute_w": 0}, ["learners.0.energy.compute_w: 0: is zero", "watts"]),
        (ENERGY, {"max_j": 1, "compute_w": 1, "receive_w": 1}, ["energy.receive_w: without a link"]),
        (ENERGY, {"max_j": 1, "compute_w": 1, "recive_w": 1}, ["recive_w: unknown key", "'receive_w'"]),
    ],
)
def test_what_makes_no_sense_is_refused_by_field_value_and_remedy(path, value, parts):
    _refused(changed(MEASURED, path, value), parts)


@pytest.mark.parametrize(
    ("path", "value", "parts"),
    [
        (("task",), ABSENT, ["task: is missing", "learners.0 has cpu_hz"]),
        (("task", "operations_per_sample"), ABSENT, ["task.operations_per_sample: is missing"]),
        (("task", "features"), ABSENT, ["task.features", "learners.0", "federated"]),
        (("task", "parameters"), 0, ["task.parameters: 0: is zero"]),
        (("task", "bits_per_feature"), -8, ["task.bits_per_feature: -8: is negative"]),
        (("learners", 0, "cpu_hz"), 0, ["learners.0.cpu_hz: 0: is zero", "hertz"]),
        (("learners", 0, "transfer_s_per_sample"), 1, ["transfer_s_per_sample follows from link"]),
        (LINK, {}, ["learners.0.link", "bit_rate", "bandwidth_hz", "transmit_dbm", "distance_m"]),
        (LINK, {**RADIO, "bit_rate": 1e6}, ["learners.0.link", "beside bandwidth_hz, distance_m"]),
        (LINK, {**RADIO, "path_loss_db": 7}, ["learners.0.link", "one of distance_m and path_loss_db"]),
        (LINK, {**RADIO, "distance_m": -50}, ["link.distance_m: -50: is negative", "metres"]),
        (LINK, {**RADIO, "transmit_dbm": 1e6}, ["link.transmit_dbm: 1000000.0: is out of range", "300"]),
        (LINK, {**RADIO, "path_loss_per_decade_db": 290, "distance_m": 1e30}, ["no signal arrives"]),
        (LINK, {"bit_rate": 0}, ["learners.0.link.bit_rate: 0: is zero", "bit/s"]),
        (LINK, 5, ["learners.0.link: 5"]),
        (LINK, {"bitrate": 1e6}, ["learners.0.link.bitrate: unknown key", "'bit_rate'"]),
    ],
)
def test_physical_terms_that_make_no_sense_are_refused(path, value, parts):
    _refused(changed(PHYSICAL, path, value), parts)


def _refused(values, parts):
    with pytest.raises(OffbeatError) as caught:
        problem(values)
    said = str(caught.value)
    assert said.startswith("it.yaml: ")
    for part in parts:
        assert part in said
    assert len(said.splitlines()) <= 2


def test_a_cycle_that_is_shorter_than_the_models_transfer_is_refused():
    with pytest.raises(OffbeatError, match=r"learner 'pi': fixed_s is 0\.12.*cycle_s.*0\.1 s"):
        problem(changed(MEASURED, ("cycle_s",), 0.1))


def test_a_fleet_that_is_wrong_everywhere_gets_a_short_answer():
    values = {**MEASURED, "learners": [{"fixed_s": -1, "cpu_hz": 1e9} for _ in range(1000)]}
    with pytest.raises(OffbeatError) as caught:
        problem(values)
    assert "learners.0.fixed_s: -1" in str(caught.value)
    assert "problems more" in str(caught.value)
    assert len(str(caught.value)) < 1000


# ---- files ----------------------------------------------------------------------------------


def test_json_and_yaml_are_read_alike(tmp_path):
    (tmp_path / "it.json").write_text("\ufeff" + json.dumps({**MEASURED, "expected": {"relaxed": None}}))
    (tmp_path / "it.yaml").write_text(
        "mode: federated\ncycle_s: 7.5\nsamples: 12000\nlearners:\n"
        "- {name: pc, compute_s_per_sample_update: 3.4e-4, fixed_s: 9e-2}\n"  # YAML takes 9e-2 for a text
        "- {name: pi, compute_s_per_sample_update: 1.3e-3, fixed_s: 0.12, min_samples: 1500}\n"
    )
    one, other = (Instance.read(tmp_path / name) for name in ("it.json", "it.yaml"))
    assert one.name == other.name == "it"
    for field in ("compute", "transfer", "fixed", "min_samples", "max_samples"):
        left, right = (getattr(instance.problem(), field).tolist() for instance in (one, other))
        assert left == right


@pytest.mark.parametrize(
    ("name", "content", "parts"),
    [
        ("it.json", b"", ["is empty", "docs/plan.md"]),
        ("it.yaml", b"# nothing\n", ["is empty", "docs/plan.md"]),
        ("it.json", b"\xff\xfe{}", ["not text in UTF-8"]),
        ("it.json", b'{"mode": ', ["line 1", "not valid JSON"]),
        ("it.json", b"[]", ["a mapping", "not list"]),
        ("it.json", b"[" * 100_000, ["not valid JSON"]),
        ("it.yaml", b"just text", ["a mapping", "not str"]),
        ("it.yaml", b"mode: [\n", ["not valid YAML"]),
        ("it.yaml", b"cycle_s: 2026-13-45\n", ["not valid YAML", "month"]),
    ],
)
def test_a_file_that_holds_no_instance_is_refused(tmp_path, name, content, parts):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(OffbeatError) as caught:
        Instance.read(tmp_path / name)
    for part in [str(tmp_path / name), *parts]:
        assert part in str(caught.value)


@pytest.mark.parametrize(("name", "said"), [("absent.json", "No such file"), (".", "directory")])
def test_a_file_that_cannot_be_read_is_named(tmp_path, name, said):
    with pytest.raises(OffbeatError, match=said):
        Instance.read(tmp_path / name)


# ---- docs/plan.md ---------------------------------------------------------------------------

DOCS = (Path(__file__).parents[2] / "docs/plan.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("model", [Instance, LearnerGroup, Task, Link, EnergyLimit], ids=lambda m: m.__name__)
def test_the_documentation_has_every_key(model):
    for key in model.model_fields:
        if key not in ("name", "expected"):  # of an instance: for test cases
            assert re.search(rf"\b{key}\b", DOCS), key


def test_the_instances_in_the_documentation_are_valid():
    blocks = [yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", DOCS, re.DOTALL)]
    assert len(blocks) == 2
    for block in blocks:
        assert Instance.make({**blocks[0], **block}, "docs/plan.md").problem().learners > 1
