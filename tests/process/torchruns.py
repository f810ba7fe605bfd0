"""torchrun for real: agents as processes of their own, here or each in a network namespace, and who they started."""

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from harness.model import Record, Run
from harness.store import load
from tests.process.processes import ROOT, Left, Process, end_of, wait_until

# CI sets it, so that what needs privileges is never skipped there without a word.
REQUIRED = "OFPEAK_TEST_NAMESPACES"
_INTERFACE = "eth0"
_ADDRESSES = ("10.203.77.1", "10.203.77.2")


@dataclass
class Torchrun:
    """One run under torchrun: an agent a host, in sessions of their own."""

    folder: Path
    agents: list[Process] = field(default_factory=list)

    @property
    def run(self) -> Run:
        """The one run file."""
        return load(self.folder / "run-001.json")

    @property
    def records(self) -> Mapping[str, Record]:
        """The run's records by their parameter `turn`."""
        return {str(record.case.params["turn"]): record for record in self.run.records}

    def start(
        self,
        arguments: Sequence[object],
        nodes: int = 1,
        ranks_per_node: int = 2,
        module: str = "tests.process.on_ranks",
        within: Sequence[Sequence[str]] = (),
        address: str = "127.0.0.1",
        environment: Mapping[str, str] | None = None,
    ) -> "Torchrun":
        """Start the agents; `within` is what each one's command is put behind."""
        port = free_port()
        for node in range(nodes):
            command = [
                *(within[node] if within else ()),
                *(sys.executable, "-m", "torch.distributed.run", f"--nnodes={nodes}", f"--node-rank={node}"),
                *(f"--nproc-per-node={ranks_per_node}", f"--master-addr={address}", f"--master-port={port}"),
                *("-m", module, "run", "--device", "cpu", "--profile", "smoke", "--out", str(self.folder)),
                *map(str, arguments),
            ]
            settings = {"OMP_NUM_THREADS": "1", "OFPEAK_TEST_FOLDER": str(self.folder.parent), **(environment or {})}
            self.agents.append(
                subprocess.Popen(
                    command,
                    cwd=ROOT,
                    env={**os.environ, "PYTHONPATH": str(ROOT), **settings},
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                    start_new_session=True,
                )
            )
        return self

    def wait_until_rank_1_waits(self, turn: str = "waits") -> None:
        """That case is being measured."""
        wait_until((self.folder.parent / turn).exists, f"rank 1 waits in {turn}", 90.0)

    def ends(self, limit_s: float = 120.0) -> list[Left]:
        """How each agent ended. Nothing that they started may be left."""
        left = [end_of(agent, limit_s) for agent in self.agents]
        assert_nothing_left(self)
        return left

    def processes(self, words: str) -> list[int]:
        """The processes of this run whose command holds these words."""
        return [pid for pid in everyone_of(self.folder.parent) if words in command_of(pid)]

    def servers(self, rank: int) -> list[int]:
        """The server that holds that rank."""
        return [pid for pid in self.processes("harness.probe.serving") if variable_of(pid, "RANK") == str(rank)]


def free_port() -> int:
    """A port that was free just now."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


def everyone_of(folder: Path) -> list[int]:
    """Every living process that was started with this test's folder in its environment."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        pid = int(path.name)
        if variable_of(pid, "OFPEAK_TEST_FOLDER") == str(folder):
            found.append(pid)
    return found


def variable_of(pid: int, name: str) -> str:
    """A variable with which a process was started."""
    try:
        entries = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return ""
    return next((e.partition(b"=")[2].decode() for e in entries if e.startswith(name.encode() + b"=")), "")


def command_of(pid: int) -> str:
    """A process's command line."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def assert_nothing_left(torchrun: Torchrun) -> None:
    """No process of the run is left, whatever became of it."""
    wait_until(lambda: not everyone_of(torchrun.folder.parent), "every process of the run is gone", 60.0)


@contextmanager
def two_hosts() -> Iterator[list[list[str]]]:
    """Two network namespaces with a cable between them: what to put in front of a command to run it in each.

    Skips where this process may not make any, and fails instead where OFPEAK_TEST_NAMESPACES says that it must.
    """
    names = [f"ofpeak-{os.getpid()}-{node}" for node in range(2)]
    try:
        problem = _make(names)
        if problem and os.environ.get(REQUIRED) == "required":
            pytest.fail(f"{REQUIRED}=required, but no network namespace can be made: {problem}")
        if problem:
            pytest.skip(f"no network namespace can be made, so nothing between two hosts was tested: {problem}")
        yield [["ip", "netns", "exec", name] for name in names]
    finally:
        if shutil.which("ip"):
            for name in names:
                subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)


def pull_cable(host: Sequence[str]) -> None:
    """From now on no packet leaves or reaches that host, and nobody is told."""
    subprocess.run([*host, "ip", "link", "set", _INTERFACE, "down"], check=True)


def _make(names: Sequence[str]) -> str:
    """Make the namespaces; why that cannot be done."""
    if shutil.which("ip") is None:
        return "iproute2's `ip` is not installed"
    first, second = names
    steps = [
        *(["netns", "add", name] for name in names),
        ["link", "add", _INTERFACE, "netns", first, "type", "veth", "peer", "name", _INTERFACE, "netns", second],
        *(
            ["-n", name, "address", "add", f"{address}/24", "dev", _INTERFACE]
            for name, address in zip(names, _ADDRESSES, strict=True)
        ),
        *(["-n", name, "link", "set", device, "up"] for name in names for device in (_INTERFACE, "lo")),
    ]
    for step in steps:
        done = subprocess.run(["ip", *step], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            return f"`ip {' '.join(step)}`: {done.stderr.strip()}"
    return ""


BETWEEN_HOSTS = {"nodes": 2, "ranks_per_node": 1, "address": _ADDRESSES[0]}
# gloo binds to the address of the host's name unless it is told where to.
GLOO = {"GLOO_SOCKET_IFNAME": _INTERFACE}
