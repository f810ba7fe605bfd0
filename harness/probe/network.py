"""How fast a host's network is at most, as its kernel tells: the line rates of the ports that NCCL may use, added up.

InfiniBand and RoCE ports stand in /sys/class/infiniband; where there is none, NCCL uses sockets over the interfaces in
/sys/class/net. NCCL_IB_HCA, NCCL_IB_DISABLE and NCCL_SOCKET_IFNAME are heeded as NCCL's documentation defines them.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.probe.facts import words_of

_GIGABIT_BYTES = 1e9 / 8
_MEGABIT = 1e6
# "400 Gb/sec (4X NDR)": the kernel's drivers/infiniband/core/sysfs.c.
_RATE = re.compile(r"([\d.]+) Gb/sec")
_ACTIVE = "ACTIVE"


@dataclass(frozen=True)
class Network:
    """A host's line rate one way in bytes per second, and its ports in words; `None` with the reason."""

    bytes_per_s: float | None
    words: str = ""
    reason: str = ""


@dataclass(frozen=True)
class _Port:
    name: str
    kind: str
    gigabit_per_s: float


def network_of(root: Path, environment: Mapping[str, str]) -> Network:
    """The network of the host whose /sys stands under `root`."""
    ports = [] if environment.get("NCCL_IB_DISABLE") == "1" else list(_infiniband(root))
    variable = "NCCL_IB_HCA"
    if not ports:
        ports, variable = list(_ethernet(root)), "NCCL_SOCKET_IFNAME"
    if not ports:
        return Network(None, reason="no network port here tells its speed")
    chosen = [port for port in ports if _is_chosen(port.name, environment.get(variable, ""))]
    if not chosen:
        return Network(None, reason=f"{variable} leaves none of the {len(ports)} network ports that tell their speed")
    counted = Counter((port.gigabit_per_s, port.kind) for port in chosen)
    words = ", ".join(f"{count} x {speed:g} Gb/s {kind}" for (speed, kind), count in sorted(counted.items()))
    return Network(sum(port.gigabit_per_s for port in chosen) * _GIGABIT_BYTES, words)


def _infiniband(root: Path) -> Iterator[_Port]:
    """Every active port; `mlx5_0:1` is how NCCL names them."""
    for folder in sorted((root / "sys/class/infiniband").glob("*/ports/*")):
        rate = _RATE.match(words_of(folder / "rate") or "")
        if rate is None or _ACTIVE not in (words_of(folder / "state") or ""):
            continue
        kind = words_of(folder / "link_layer") or "InfiniBand"
        name = f"{folder.parents[1].name}:{folder.name}"
        yield _Port(name, "RoCE" if kind == "Ethernet" else kind, float(rate[1]))


def _ethernet(root: Path) -> Iterator[_Port]:
    """Every interface that is up and has hardware behind it: what is virtual tells a speed that means nothing."""
    for folder in sorted((root / "sys/class/net").glob("*")):
        speed = words_of(folder / "speed") or ""
        is_up = words_of(folder / "operstate") == "up"
        if is_up and (folder / "device").exists() and speed.isdecimal() and int(speed) > 0:
            yield _Port(folder.name, "Ethernet", int(speed) * _MEGABIT / 1e9)


def _is_chosen(name: str, wanted: str) -> bool:
    """Whether NCCL's list names it: names or their beginnings; `=` in front: whole names; `^` in front: all others."""
    if not wanted:
        return True
    excludes, wanted = wanted.startswith("^"), wanted.removeprefix("^")
    is_exact, wanted = wanted.startswith("="), wanted.removeprefix("=")
    return _is_listed(name, (entry for entry in wanted.split(",") if entry), is_exact) != excludes


def _is_listed(name: str, entries: Iterable[str], is_exact: bool) -> bool:
    device, _, port = name.partition(":")
    for entry in entries:
        wanted_device, _, wanted_port = entry.partition(":")
        is_device = device == wanted_device if is_exact else device.startswith(wanted_device)
        if is_device and wanted_port in ("", port):
            return True
    return False
