"""Whether ranks fit together, and what a run file says of their hosts: without processes and without torch's store."""

import dataclasses
from typing import Any

import pytest

from harness.errors import HarnessError
from harness.model import DeviceFacts, Fact, Party, PeakSheet
from harness.probe import party
from harness.probe.meeting import Meeting, MeetingError
from harness.torchrun import Place

PLACE = Place(rank=0, ranks=4, host=0, hosts=2, local_rank=0, store_address="gpu-1", store_port=29500)
H200 = DeviceFacts("cuda", "NVIDIA H200", "cuda:0", gpu_count=2)
CODE = {"ofpeak": "0.1.0", "source": "aa", "torch": "2.11.0"}
NETWORK = {"bytes_per_s": 400e9, "words": "8 x 400 Gb/s InfiniBand", "reason": ""}


def rank(card: str = "c0", **changed: Any) -> dict[str, Any]:
    return {
        "kind": "cuda",
        "name": "NVIDIA H200",
        "card": card,
        "no_card": "ok",
        "site_key": "our key",
        "boot": "b0",
        "code": CODE,
        "conditions": {"driver": "580.1", "power_limit_w": 700.0},
        "network": NETWORK,
        **changed,
    }


@pytest.fixture
def join(monkeypatch: pytest.MonkeyPatch):
    """What `join` makes of these introductions, rank 0's first."""

    def joined(*ranks: dict[str, Any]) -> party.Joined:
        class Told(Meeting):
            def __init__(self, place: Place) -> None:
                self.place = place

            def introductions(self, limit_s: float) -> dict[int, Any]:
                return dict(enumerate(ranks))

        monkeypatch.setattr(party, "Meeting", Told)
        monkeypatch.setattr(party, "introduction", lambda *_: ranks[0])
        return party.join(PLACE, H200, {}, 1.0)

    return joined


def test_every_hosts_cards_and_network_are_in_the_run_file(join):
    slow = {"bytes_per_s": 200e9, "words": "8 x 200 Gb/s InfiniBand", "reason": ""}
    joined = join(rank("c0"), rank("c1"), rank("c2", network=slow, boot="b1"), rank("c3", network=slow, boot="b1"))
    assert joined.party == Party(hosts=2, ranks=4, network_bytes_per_s=200e9)
    assert joined.environment == {
        "hosts.count": Fact(2),
        "hosts.ranks": Fact(4),
        "hosts.0.cards": Fact("c0 c1"),
        "hosts.0.network": Fact("8 x 400 Gb/s InfiniBand"),
        "hosts.0.boot": Fact("b0", role="informative"),
        "hosts.1.cards": Fact("c2 c3"),
        "hosts.1.network": Fact("8 x 200 Gb/s InfiniBand"),
        "hosts.1.boot": Fact("b1", role="informative"),
        "hosts.differ": Fact("in nothing that was read"),
    }


def test_line_rate_that_one_host_does_not_tell_is_unknown_for_all(join):
    silent = {"bytes_per_s": None, "words": "", "reason": "no network port here tells its speed"}
    joined = join(rank("c0"), rank("c1"), rank("c2", network=silent), rank("c3", network=silent))
    assert joined.party == Party(2, 4, None, "host 1: no network port here tells its speed")
    assert joined.environment["hosts.1.network"] == Fact(None, "no network port here tells its speed")


def test_cards_hashed_with_another_key_are_unknown(join):
    joined = join(rank("c0"), rank("c1"), rank("c2", site_key="theirs"), rank("c3", site_key="theirs"))
    assert joined.environment["hosts.1.cards"].value is None
    assert "set the same OFPEAK_SITE_KEY on every host" in joined.environment["hosts.1.cards"].status
    assert joined.environment["hosts.1.boot"] == Fact(None, "another site key", "informative")


def test_conditions_that_differ_between_ranks_are_a_condition_of_the_run(join):
    joined = join(rank("c0"), rank("c1"), rank("c2"), rank("c3", conditions={"driver": "580.1", "power_limit_w": 600}))
    assert joined.environment["hosts.differ"] == Fact("rank 3 power_limit_w 600, rank 0 700.0")


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"name": "NVIDIA H100 80GB HBM3"}, "rank 3 of 4 (host 1) has device NVIDIA H100 80GB HBM3, rank 0 has NVIDIA"),
        ({"conditions": {"driver": "570.9"}}, "rank 3 of 4 (host 1) has driver 570.9, rank 0 has 580.1"),
        ({"code": {**CODE, "torch": "2.13.0"}}, "rank 3 of 4 runs other code: torch 2.13.0, rank 0 has 2.11.0"),
        ({"card": "c0"}, "rank 0 of 4 (host 0) is on another rank's GPU. Start one rank a GPU."),
    ],
)
def test_ranks_that_make_no_run_are_refused(join, changed: dict[str, Any], told: str):
    with pytest.raises(HarnessError) as error:
        join(rank("c0"), rank("c1"), rank("c2"), rank(**{"card": "c3", **changed}))
    assert str(error.value).startswith(told)


def test_device_that_cannot_be_used_is_told_with_its_host(join):
    with pytest.raises(HarnessError, match=r"rank 2 of 4 \(host 1\): CUDA error 802"):
        join(rank("c0"), rank("c1"), {"error": "CUDA error 802"}, rank("c3"))


def test_ranks_that_do_not_come_are_named(monkeypatch: pytest.MonkeyPatch):
    class Absent(Meeting):
        def __init__(self, place: Place) -> None:
            self.place = place

        def introductions(self, limit_s: float) -> dict[int, Any]:
            raise MeetingError(f"{self.names([2, 3])} did not come in {limit_s:.0f} s")

    monkeypatch.setattr(party, "Meeting", Absent)
    with pytest.raises(HarnessError) as error:
        party.join(PLACE, H200, {}, 120.0)
    assert str(error.value) == (
        "rank 2 and 3 of 4 (host 1) did not come in 120 s. Look at what torchrun printed there."
    )


def test_peak_between_hosts_is_the_slowest_hosts_line_rate():
    sheet = PeakSheet("H200", "exact")
    peak = party.with_network(sheet, Party(2, 16, 400e9)).peaks["network"]
    assert (peak.value, peak.unit, peak.provenance) == (400e9, "B", "read")
    assert "of one of 2 hosts" in peak.source
    assert party.with_network(sheet, Party(2, 16, None, "why")) is sheet
    assert party.with_network(sheet, None) is sheet


def test_introduction_holds_what_must_match_and_nothing_that_names_a_host():
    environment = {
        "driver": Fact("580.1"),
        "card": Fact("c0"),
        "gpu_numa_node": Fact(1),
        "boot": Fact("b0", role="informative"),
        "temperature_c": Fact(40, role="informative"),
        "site_key": Fact("our key", role="informative"),
    }
    told = party.introduction(dataclasses.replace(H200), environment)
    assert told["conditions"] == {"driver": "580.1"}
    assert (told["card"], told["boot"], told["site_key"]) == ("c0", "b0", "our key")
    assert {"ofpeak", "source", "torch"} <= told["code"].keys()
