"""Clock, averages, retry delays, errors, channels and the lifeline."""

import itertools
import os
import random
import socket
import subprocess
import sys
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offbeat_core.averages import RunningMedian, SmoothedMean
from offbeat_core.channels import is_loopback, listen, make_server, split_address
from offbeat_core.clock import VirtualClock
from offbeat_core.errors import ExitCode, OffbeatError, guard
from offbeat_core.retry import delays


@given(st.lists(st.floats(0, 100), min_size=1, max_size=30))
def test_virtual_time_never_goes_back_and_keeps_the_order_of_equals(times):
    clock = VirtualClock()
    seen = []
    for number, when in enumerate(times):
        clock.call_at(when, lambda when=when, number=number: seen.append((clock.now(), when, number)))
    clock.run_until(200)
    assert [now for now, _, _ in seen] == sorted(times)
    assert seen == sorted(seen, key=lambda row: (row[1], row[2]))
    assert clock.now() == 200


def test_a_call_made_in_the_past_runs_now():
    clock = VirtualClock(10)
    seen = []
    clock.call_at(3, lambda: seen.append(clock.now()))
    assert clock.step()
    assert seen == [10]
    assert not clock.step()


@given(st.floats(-1e3, 1e3), st.integers(1, 50), st.floats(0.01, 1))
def test_the_smoothed_mean_of_a_constant_is_the_constant_from_the_first_value(value, count, weight):
    mean = SmoothedMean(weight)
    for _ in range(count):
        assert mean.add(value) == pytest.approx(value, rel=1e-6, abs=1e-6)


def test_the_smoothed_mean_follows_a_change():
    mean = SmoothedMean(0.2)
    for value in [1.0] * 20 + [2.0] * 20:
        mean.add(value)
    assert 1.95 < mean.value < 2.0


def test_the_running_median_ignores_one_far_value_and_follows_a_change():
    median = RunningMedian(5)
    assert median.value == 0
    for value in [1.0, 1.0, 30.0, 1.0, 1.0]:
        median.add(value)
    assert median.value == 1.0
    for value in [2.0] * 3:
        median.add(value)
    assert median.value == 2.0


def test_retry_delays_double_up_to_a_ceiling_with_jitter_below_it():
    waits = list(itertools.islice(delays(first=0.2, longest=3, chance=random.Random(1)), 12))
    for wait, ceiling in zip(waits, [0.2, 0.4, 0.8, 1.6, *[3] * 8], strict=True):
        assert ceiling / 2 <= wait <= ceiling
    assert len(set(waits)) == len(waits)


@pytest.mark.parametrize(
    ("address", "host", "port"), [("127.0.0.1:1", "127.0.0.1", 1), ("[::1]:50", "::1", 50)]
)
def test_addresses_of_both_families(address, host, port):
    assert split_address(address, "listen") == (host, port)
    assert is_loopback(host)


@pytest.mark.parametrize("address", ["", "host", "host:", ":5", "host:x", "host:70000", "host:-1"])
def test_a_bad_address_names_the_field(address):
    with pytest.raises(OffbeatError, match="listen"):
        split_address(address, "listen")


async def _bind(address, **options):
    return listen(make_server(), address, **options)


def test_a_taken_port_is_a_clear_error_and_never_shared(capfd):
    import asyncio

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(OffbeatError, match=r"listen: .*in use"):
            asyncio.run(_bind(f"127.0.0.1:{taken.getsockname()[1]}"))
    assert capfd.readouterr().err == ""  # gRPC has no word of its own


def test_an_open_plaintext_port_needs_a_word_of_permission():
    import asyncio

    with pytest.raises(OffbeatError, match="allow_plaintext"):
        asyncio.run(_bind("0.0.0.0:0"))
    assert asyncio.run(_bind("0.0.0.0:0", allow_plaintext=True)) > 0


def _raise(error):
    raise error


@pytest.mark.parametrize(
    ("error", "code", "shown"),
    [
        (OffbeatError("x: 3 is bad", "give 4"), ExitCode.FAILED, "error: x: 3 is bad\ngive 4\n"),
        (OffbeatError("no", code=ExitCode.LIMIT), ExitCode.LIMIT, "error: no\n"),
        (KeyboardInterrupt(), ExitCode.INTERRUPTED, "interrupted\n"),
    ],
)
def test_errors_become_lines_and_exit_codes_without_a_traceback(error, code, shown, capsys):
    assert guard(lambda: _raise(error)) == code
    assert capsys.readouterr().err == shown


def test_an_unexpected_error_is_one_line_and_debug_shows_where(capsys):
    assert guard(lambda: _raise(RuntimeError("odd"))) == ExitCode.FAILED
    assert "Traceback" not in capsys.readouterr().err
    assert guard(lambda: _raise(RuntimeError("odd")), debug=True) == ExitCode.FAILED
    assert "Traceback" in capsys.readouterr().err


def test_a_child_ends_when_its_lifeline_is_cut():
    read, write = os.pipe()
    child = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import time, offbeat_core.lifeline as l; l.hold_on(); print('up', flush=True); time.sleep(60)",
        ],
        env={**os.environ, "OFFBEAT_LIFELINE_FD": str(read)},
        pass_fds=[read],
        stdout=subprocess.PIPE,
    )
    try:
        os.close(read)
        assert child.stdout.readline() == b"up\n"
        time.sleep(0.1)
        assert child.poll() is None
        os.close(write)
        assert child.wait(timeout=20) == -15
    finally:
        child.kill()
        child.wait()
