"""Messages between hosts: what comes out is what went in, and nothing that anyone else puts in."""

import json
import pickle
import socket
import struct
from collections.abc import Iterator
from fractions import Fraction

import pytest

from harness.model import Telemetry
from harness.probe import wire
from harness.probe.load import Pace
from harness.probe.wire import Listener, Wire, call


@pytest.fixture
def pair() -> Iterator[tuple[Wire, Wire]]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        one = socket.create_connection(server.getsockname())
        other, _ = server.accept()
    wires = (Wire(one), Wire(other))
    yield wires
    for each in wires:
        each.close()


def test_command_and_answer_come_out_as_they_went_in(pair: tuple[Wire, Wire]):
    one, other = pair
    command = ("run", [Pace("graph", 50, 1e-5), 3, 4, Fraction(3, 100)])
    one.send(command)
    assert other.recv() == ["run", [Pace("graph", 50, 1e-5), 3, 4, Fraction(3, 100)]]
    told = Telemetry(power_w=600.5, timeline={"time_s": (0.0, None)}, missing={"settled": "why"})
    other.send(("ok", {"seconds": [0.1, 1 / 3], "telemetry": told}, ""))
    assert one.recv() == ["ok", {"seconds": [0.1, 1 / 3], "telemetry": told}, ""]


def test_nothing_is_unpickled(pair: tuple[Wire, Wire]):
    """multiprocessing's connections run what a pickle tells them to."""
    one, other = pair
    data = pickle.dumps(print)
    one._socket.sendall(struct.pack("!I", len(data)) + data)
    with pytest.raises(OSError, match="a message that cannot be read"):
        other.recv()


@pytest.mark.parametrize("content", ['{"$type": "Path", "value": "/"}', '{"$type": "Fraction", "value": "one"}', "[1,"])
def test_message_of_another_kind_is_refused(content: str, pair: tuple[Wire, Wire]):
    one, other = pair
    one._socket.sendall(struct.pack("!I", len(content)) + content.encode())
    with pytest.raises(OSError, match="a message that cannot be read"):
        other.recv()


def test_message_that_is_too_long_is_not_read(pair: tuple[Wire, Wire]):
    one, other = pair
    one._socket.sendall(struct.pack("!I", 2**31))
    with pytest.raises(OSError, match="2147483648 bytes is none of ours"):
        other.recv()


def test_end_of_the_other_side_is_an_end(pair: tuple[Wire, Wire]):
    one, other = pair
    one.send("last")
    assert not other.has_ended()
    one.close()
    assert not other.has_ended()
    assert other.recv() == "last"
    assert other.has_ended()
    with pytest.raises(EOFError):
        other.recv()


def test_what_waits_is_seen_without_reading_it(pair: tuple[Wire, Wire]):
    one, other = pair
    assert not other.next_is("died")
    one.send(("died", -9, ""))
    wait_for(other)
    assert other.next_is("died")
    assert not other.next_is("dead")
    assert other.recv() == ["died", -9, ""]


def wait_for(one: Wire) -> None:
    from harness.probe.members import ready_of

    assert ready_of({7: one}, 5.0) == [7]


def test_rank_with_the_token_is_let_in_and_nobody_else(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(wire, "_GREETING_LIMIT_S", 0.05)
    listener = Listener()
    strangers = [
        {"token": "", "rank": 1},
        {"token": listener.token[:-1] + "?", "rank": 1},
        {"rank": 1},
        {"token": listener.token, "rank": "1"},
        [listener.token, 1],
    ]
    for greeting in strangers:
        with socket.create_connection(("127.0.0.1", listener.port)) as stranger:
            data = json.dumps(greeting).encode()
            stranger.sendall(struct.pack("!I", len(data)) + data)
            assert listener.accept(5.0) is None, greeting
            assert stranger.recv(1) == b""
    with socket.create_connection(("127.0.0.1", listener.port)):
        assert listener.accept(5.0) is None  # silent
    assert listener.accept(0.0) is None  # nobody
    ours = call("127.0.0.1", listener.port, listener.token, 3, 5.0)
    came = listener.accept(5.0)
    assert came is not None
    rank, theirs = came
    theirs.send("welcome")
    assert (rank, ours.recv()) == (3, "welcome")
    for end in (ours, theirs, listener):
        end.close()
