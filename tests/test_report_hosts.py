"""What the head of a summary says of several hosts."""

from dataclasses import replace

from harness.model import Fact, Party
from harness.report.header import machine_lines
from tests import hand_made


def told(party: Party | None, **facts: Fact) -> str | None:
    run = hand_made.full_run()
    named = {name.replace("_", "."): fact for name, fact in facts.items()}
    run = replace(run, device=replace(run.device, party=party), environment={**run.environment, **named})
    return dict(machine_lines(run)).get("hosts")


def test_every_host_stands_with_its_cards_and_ports():
    facts = {
        "hosts_0_cards": Fact("c0 c1"),
        "hosts_0_network": Fact("2 x 400 Gb/s InfiniBand"),
        "hosts_1_cards": Fact(None, "of another site key"),
    }
    assert told(Party(2, 4), **facts) == "4 ranks on 2 hosts, 0: c0 c1 (2 x 400 Gb/s InfiniBand), 1: –"
    assert told(Party(1, 2), hosts_0_cards=Fact("c0 c1")) == "2 ranks on 1 host, 0: c0 c1"


def test_a_run_without_torchrun_says_nothing_of_hosts():
    assert told(None) is None


def test_hosts_beyond_the_eighth_are_counted():
    """A run file may say any number."""
    assert str(told(Party(10**9, 10**9))).endswith("7: –, 999999992 more hosts")
