"""The ranks of a torchrun job and their hosts: who they are, whether they fit together, what a run file says of them.

A host is a number, a card a hash: no name or address is stored.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from harness.errors import ExitCode, HarnessError
from harness.model import DeviceFacts, Fact, Party, Peak, PeakSheet
from harness.probe.meeting import Meeting, MeetingError
from harness.probe.network import network_of
from harness.probe.rank_faults import code_of_rank, other_code
from harness.torchrun import Place

NETWORK = "network"
# What tells one GPU of a host from the next, and no condition of what they measure together.
_OWN = frozenset(("card", "gpu_numa_node", "gpu_cpus", "gpu_cpus_allowed"))
_MOST_SHOWN = 8


@dataclass(frozen=True)
class Joined:
    """The meeting that goes on, the ranks as the families see them, and what the run file says of their hosts."""

    meeting: Meeting
    party: Party
    environment: Mapping[str, Fact]


def introduction(device: DeviceFacts, environment: Mapping[str, Fact]) -> dict[str, Any]:
    """What a rank tells rank 0 of itself, as plain data."""
    network = network_of(Path("/"), os.environ)
    site_key, boot, card = (environment.get(name, Fact(None, "not read")) for name in ("site_key", "boot", "card"))
    return {
        "kind": device.kind,
        "name": device.name,
        "card": card.value,
        "no_card": card.status,
        "site_key": site_key.value,
        "boot": boot.value,
        "code": code_of_rank(),
        "conditions": {n: f.value for n, f in environment.items() if f.role == "match" and n not in _OWN},
        "network": {"bytes_per_s": network.bytes_per_s, "words": network.words, "reason": network.reason},
    }


def join(place: Place, device: DeviceFacts, environment: Mapping[str, Fact], limit_s: float) -> Joined:
    """Wait for all ranks. HarnessError where one does not come, or is not what rank 0 is."""
    try:
        meeting = Meeting(place)
        told = meeting.introductions(limit_s)
    except MeetingError as error:
        raise HarnessError(f"{error}. Look at what torchrun printed there.", ExitCode.INCONCLUSIVE) from error
    ranks = [introduction(device, environment), *(told[rank] for rank in range(1, place.ranks))]
    if problem := _problem_of(ranks, meeting):
        raise HarnessError(problem, ExitCode.INCONCLUSIVE)
    by_host = [ranks[i : i + place.ranks_per_host] for i in range(0, place.ranks, place.ranks_per_host)]
    rate, no_rate = _network_of_all([of_host[0]["network"] for of_host in by_host])
    party = Party(place.hosts, place.ranks, rate, no_rate)
    return Joined(meeting, party, _facts(place, by_host))


def with_network(sheet: PeakSheet, party: Party | None) -> PeakSheet:
    """The peaks with that between hosts: what the ports of the slowest host carry one way."""
    if party is None or party.network_bytes_per_s is None:
        return sheet
    source = f"line rates of the network ports of one of {party.hosts} hosts, added up, one way, as their kernels tell"
    return replace(sheet, peaks={**sheet.peaks, NETWORK: Peak(party.network_bytes_per_s, "B", "read", source)})


def _problem_of(ranks: Sequence[Mapping[str, Any]], meeting: Meeting) -> str:
    """Why these ranks cannot be one run; "" where they can."""
    for rank, told in enumerate(ranks):
        if "error" in told:
            return f"{meeting.names([rank])}: {told['error']}"
    if difference := other_code([told["code"] for told in ranks]):
        return difference
    for rank, told in enumerate(ranks):
        for what, own, first in _essentials(told, ranks[0]):
            if own != first:
                return (
                    f"{meeting.names([rank])} has {what} {own}, rank 0 has {first}: a run is of one. Take the hosts "
                    "apart, or install the same."
                )
    cards = [told["card"] for told in ranks if told["card"] is not None]
    twice = next((rank for rank, told in enumerate(ranks) if told["card"] and cards.count(told["card"]) > 1), None)
    return "" if twice is None else f"{meeting.names([twice])} is on another rank's GPU. Start one rank a GPU."


def _essentials(told: Mapping[str, Any], first: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    yield "device", told["name"], first["name"]
    yield "driver", told["conditions"].get("driver"), first["conditions"].get("driver")


def _network_of_all(networks: Sequence[Mapping[str, Any]]) -> tuple[float | None, str]:
    """The slowest host's, which holds up all; unknown as soon as one is."""
    for host, network in enumerate(networks):
        if network["bytes_per_s"] is None:
            return None, f"host {host}: {network['reason']}"
    return min(network["bytes_per_s"] for network in networks), ""


def _facts(place: Place, by_host: Sequence[Sequence[Mapping[str, Any]]]) -> dict[str, Fact]:
    first = by_host[0][0]
    facts = {"hosts.count": Fact(place.hosts), "hosts.ranks": Fact(place.ranks)}
    for host, ranks in enumerate(by_host):
        network = ranks[0]["network"]
        boot = Fact(ranks[0]["boot"], role="informative")
        is_ours = ranks[0]["site_key"] == first["site_key"]
        facts |= {
            f"hosts.{host}.cards": _cards(ranks, is_ours),
            f"hosts.{host}.network": Fact(network["words"] or None, network["reason"] or "ok"),
            f"hosts.{host}.boot": boot if is_ours else Fact(None, "another site key", "informative"),
        }
    differing = list(_differing([told for ranks in by_host for told in ranks]))
    more = f"; {len(differing) - _MOST_SHOWN} more" if len(differing) > _MOST_SHOWN else ""
    facts["hosts.differ"] = Fact("; ".join(differing[:_MOST_SHOWN]) + more or "in nothing that was read")
    return facts


def _cards(ranks: Sequence[Mapping[str, Any]], is_ours: bool) -> Fact:
    """The cards of a host in the order of its ranks."""
    if not is_ours:
        return Fact(None, "its hashes are of another site key: set the same OFPEAK_SITE_KEY on every host")
    unknown = next((told["no_card"] for told in ranks if told["card"] is None), "")
    return Fact(None, unknown) if unknown else Fact(" ".join(told["card"] for told in ranks))


def _differing(ranks: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Conditions in which a rank is not as rank 0."""
    first = ranks[0]["conditions"]
    for rank, told in enumerate(ranks):
        own = told["conditions"]
        for name in sorted(own.keys() | first.keys()):
            if own.get(name) != first.get(name):
                yield f"rank {rank} {name} {_value(own.get(name))}, rank 0 {_value(first.get(name))}"


def _value(value: Any) -> str:
    return "unknown" if value is None else str(value)[:40]
