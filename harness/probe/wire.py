"""Messages between the hosts of a run: JSON behind a length, over TCP, behind a token that torchrun's store holds.

multiprocessing's own connections unpickle what comes, which lets whoever is at the other end run anything: that is for
the children of one process, not for a network. Here only numbers, texts and the few types of `_TYPES` come out.
"""

import contextlib
import hmac
import json
import secrets
import select
import socket
import struct
from collections.abc import Mapping
from dataclasses import is_dataclass
from fractions import Fraction
from typing import Any

from harness.model import Telemetry, from_plain, to_plain
from harness.probe.load import Pace

_LENGTH = struct.Struct("!I")
_LARGEST_BYTES = 64 * 2**20
_LARGEST_GREETING_BYTES = 1024
# How long half a message may take: whoever stops in the middle of one is gone.
_MESSAGE_LIMIT_S = 10.0
_GREETING_LIMIT_S = 2.0
# The kernel of a host answers for its processes, however busy they are. One that does not for 14 s is out of reach.
_KEEPALIVE = {"TCP_KEEPIDLE": 5, "TCP_KEEPINTVL": 3, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 14_000}
# What a message may hold beside JSON's own: a telemetry, how launches are paced, an exact share.
_TYPES = {"Pace": Pace, "Telemetry": Telemetry}
_TYPE = "$type"


class Wire:
    """One connection. Nothing is read ahead, so that `ready_of` sees what is still to come."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _KEEPALIVE.items():
            connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        connected.settimeout(_MESSAGE_LIMIT_S)

    def fileno(self) -> int:
        """For `ready_of`."""
        return self._socket.fileno()

    def send(self, message: Any) -> None:
        """Send one message. OSError where nobody is there any more."""
        self._socket.sendall(_packed(message))

    def recv(self, largest_bytes: int = _LARGEST_BYTES) -> Any:
        """The next message. EOFError after the last one, OSError where the other end cannot be reached."""
        (length,) = _LENGTH.unpack(self._read(_LENGTH.size))
        if length > largest_bytes:
            raise OSError(f"a message of {length} bytes is none of ours")
        return _unpacked(self._read(length))

    def next_is(self, word: str) -> bool:
        """Whether a whole message that begins with that word waits to be read."""
        try:
            if not select.select([self._socket], [], [], 0)[0]:
                return False
            head = self._socket.recv(_LENGTH.size + len(word) + 3, socket.MSG_PEEK)
        except OSError:
            return False
        return head[_LENGTH.size :] == f'["{word}"'.encode()

    def has_ended(self) -> bool:
        """Whether nothing can come any more, and all that came was read."""
        try:
            return bool(select.select([self._socket], [], [], 0)[0]) and not self._socket.recv(1, socket.MSG_PEEK)
        except OSError:
            return True

    def hang_up(self) -> None:
        """End the connection for both, also for a thread that waits for it here."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Hang up, and give the socket back."""
        self._socket.close()

    def _read(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            piece = self._socket.recv(min(size - len(data), 2**20))
            if not piece:
                raise EOFError
            data += piece
        return bytes(data)


class Listener:
    """Where the ranks of one world call in, each once. `port` and `token` are for them alone."""

    def __init__(self) -> None:
        family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
        # On every interface: which of them the other hosts reach is what MASTER_ADDR names, seen from there.
        self._socket = socket.create_server(("", 0), family=family, dualstack_ipv6=family == socket.AF_INET6)
        self.port: int = self._socket.getsockname()[1]
        self.token = secrets.token_hex(32)

    def accept(self, limit_s: float) -> tuple[int, Wire] | None:
        """The next rank that calls in, or `None` after so long without one. Strangers are hung up on."""
        if not select.select([self._socket], [], [], limit_s)[0]:
            return None
        caller, _ = self._socket.accept()
        wire = Wire(caller)
        caller.settimeout(_GREETING_LIMIT_S)
        try:
            greeting = wire.recv(_LARGEST_GREETING_BYTES)
        except (OSError, EOFError):
            greeting = None
        caller.settimeout(_MESSAGE_LIMIT_S)
        told = greeting if isinstance(greeting, dict) else {}
        rank = told.get("rank")
        if isinstance(rank, int) and hmac.compare_digest(str(told.get("token")).encode(), self.token.encode()):
            return rank, wire
        wire.close()
        return None

    def close(self) -> None:
        """Nobody is expected any more."""
        self._socket.close()


def call(address: str, port: int, token: str, rank: int, limit_s: float) -> Wire:
    """Call in as a rank of a world. OSError where nobody answers."""
    wire = Wire(socket.create_connection((address, port), limit_s))
    wire.send({"token": token, "rank": rank})
    return wire


def _packed(message: Any) -> bytes:
    data = json.dumps(message, default=_plain, separators=(",", ":")).encode()
    return _LENGTH.pack(len(data)) + data


def _plain(value: Any) -> Mapping[str, Any]:
    if isinstance(value, Fraction):
        return {_TYPE: "Fraction", "value": str(value)}
    if is_dataclass(value) and type(value).__name__ in _TYPES:
        return {_TYPE: type(value).__name__, "value": to_plain(value)}
    raise TypeError(f"{type(value).__name__} does not go over the wire")


def _unpacked(data: bytes) -> Any:
    try:
        return json.loads(data, object_hook=_typed)
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise OSError(f"a message that cannot be read ({type(error).__name__})") from error


def _typed(content: dict[str, Any]) -> Any:
    if _TYPE not in content:
        return content
    name, value = content[_TYPE], content["value"]
    return Fraction(value) if name == "Fraction" else from_plain(_TYPES[name], value)
