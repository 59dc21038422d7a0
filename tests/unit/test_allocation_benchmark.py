"""The allocation's benchmark: it measures what it says, by the command."""

from benchmarks import allocation


def test_the_loads_are_those_that_the_bars_speak_of() -> None:
    limits = {(load.integer, load.learners): load.limit_s for load in allocation.LOADS}
    assert limits == {("maximal", 10_000): 0.1, ("maximal", 100_000): 1.0, ("full-cycle", 1000): 3.0}


def test_a_fleet_is_the_same_each_time_and_has_as_many_learners_as_asked() -> None:
    for fleet in allocation.FLEETS.values():
        content = allocation.instance(100, fleet, 7.5)
        assert sum(member.get("count", 1) for member in content["learners"]) == 100
        assert content["samples"] == 100 * fleet.samples_each
        assert content == allocation.instance(100, fleet, 7.5)


def test_a_row_says_how_good_the_answer_is() -> None:
    load = next(load for load in allocation.LOADS if load.fleet == "two kinds" and load.cycle_s == 7.5)
    answer = allocation.solve(allocation.instance(20, allocation.FLEETS[load.fleet], 7.5), "full-cycle", 1)
    row = allocation.row(load, 20, answer)
    assert (row["z"], row["least tau"], row["updates"]) == (1, 3, 72)
    assert row["solve s"] == answer["solve_s"] > 0
