"""The relay delays both directions, keeps order, and limits nothing else."""

import asyncio
import time

import pytest

from offbeat_cli.relay import Relay

DELAY_S = 0.15


async def _echo_server():
    async def echo(reader, writer):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    return server, f"127.0.0.1:{server.sockets[0].getsockname()[1]}"


def _with_relay(body, delay_s=DELAY_S):
    async def run():
        server, target = await _echo_server()
        relay = Relay(target, delay_s)
        port = await relay.start()
        try:
            return await asyncio.wait_for(body(relay, port), 30)
        finally:
            await relay.close()
            server.close()

    return asyncio.run(run())


async def _round_trip(port, payload=b"x"):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    began = time.monotonic()
    writer.write(payload)
    answer = await reader.readexactly(len(payload))
    took = time.monotonic() - began
    writer.close()
    return took, answer


def test_each_direction_takes_the_delay():
    took, answer = _with_relay(lambda relay, port: _round_trip(port))
    assert answer == b"x"
    assert took >= 2 * DELAY_S


def test_connections_are_delayed_side_by_side():
    async def body(relay, port):
        began = time.monotonic()
        answers = await asyncio.gather(*(_round_trip(port, bytes([n]) * 1000) for n in range(20)))
        return time.monotonic() - began, answers

    took, answers = _with_relay(body)
    assert [answer for _, answer in answers] == [bytes([n]) * 1000 for n in range(20)]
    assert took < 20 * 2 * DELAY_S / 2  # one after another would take twice that


def test_a_long_stream_keeps_its_order_and_pays_the_delay_once():
    payload = bytes(range(256)) * 4096 * 8  # 8 MiB, many reads

    async def body(relay, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        began = time.monotonic()

        async def send():
            writer.write(payload)
            await writer.drain()

        sending = asyncio.create_task(send())
        answer = await reader.readexactly(len(payload))
        await sending
        writer.close()
        return time.monotonic() - began, answer

    took, answer = _with_relay(body)
    assert answer == payload
    assert 2 * DELAY_S <= took < 32 * DELAY_S  # 32 reads of 256 KiB at the least, each way


def test_the_end_of_a_stream_arrives_after_its_bytes():
    async def body(relay, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"last words")
        writer.write_eof()
        return await reader.read()

    assert _with_relay(body) == b"last words"


def test_a_changed_delay_holds_for_what_comes_next():
    async def body(relay, port):
        slow, _ = await _round_trip(port)
        relay.delay_s = 0.0
        fast, _ = await _round_trip(port)
        return slow, fast

    slow, fast = _with_relay(body)
    assert fast < slow / 2


def test_cutting_ends_connections_and_new_ones_are_accepted():
    async def body(relay, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"x")
        await reader.readexactly(1)
        await relay.cut()
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await reader.readexactly(1)
        writer.close()
        return await _round_trip(port)

    assert _with_relay(body, delay_s=0.0)[1] == b"x"


def test_what_is_held_arrives_once_it_is_let_go():
    async def body(relay, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        relay.hold()
        writer.write(b"late")
        writer.write_eof()
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(reader.read(), 0.2)
        relay.let_go()
        return await reader.read()

    assert _with_relay(body, delay_s=0.0) == b"late"


def test_while_held_the_end_of_one_side_is_not_told_to_the_other():
    async def body(relay, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"x")
        await reader.readexactly(1)
        relay.hold()
        writer.transport.abort()
        await asyncio.sleep(0.2)
        held = len(relay._links)
        relay.let_go()
        await asyncio.sleep(0.2)
        return held, len(relay._links)

    assert _with_relay(body, delay_s=0.0) == (1, 0)


def test_a_target_that_is_not_there_ends_the_connection():
    async def run():
        server, target = await _echo_server()
        server.close()
        await server.wait_closed()
        relay = Relay(target, 0.0)
        port = await relay.start()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            return await asyncio.wait_for(reader.read(), 10)
        except ConnectionError:
            return b""
        finally:
            writer.close()
            await relay.close()

    assert asyncio.run(run()) == b""
