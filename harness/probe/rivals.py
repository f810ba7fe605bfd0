"""Two launches of one work in turn, each timed as a case is: long blocks A B B A, or short ones at one clock."""

from collections.abc import Sequence

from harness.model import Case, Metric, Samples, Telemetry
from harness.probe.load import Device, Launch, Pace
from harness.probe.measure import Protocol, keep_window, samples_of
from harness.rivals import ABBA, AGAINST, SHORT_BLOCKS, THIS, Block, Side, merged, rival_metrics

# Of a long block the first 2 s are dropped. A short one is too short to settle: its first 0.05 s go.
LONG = Protocol(window_s=3.2, settle_s=2.0, settle_cap_s=2.0, preheat_cap_s=0.0)
SHORT = Protocol(window_s=0.1, settle_s=0.05, settle_cap_s=0.0, preheat_cap_s=0.0)
SHORT_PAIRS = 12
_GROUP_S, _SHORT_GROUP_S = 0.04, 0.01
# Groups of a block are kept as they are: both blocks of a side are pooled alike afterwards.
_UNPOOLED = 10_000


def orders_of(protocol: str) -> Sequence[Side]:
    """Whose turn it is, block by block: A B B A, once or so often that short blocks make pairs enough."""
    if protocol not in (ABBA, SHORT_BLOCKS):
        raise ValueError(f"two implementations are compared by {ABBA} or {SHORT_BLOCKS}, not by '{protocol}'")
    once: tuple[Side, ...] = (THIS, AGAINST, AGAINST, THIS)
    return once * (1 if protocol == ABBA else SHORT_PAIRS // 2)


def time_rivals(
    device: Device, case: Case, this: Launch, against: Launch
) -> tuple[Samples, Telemetry, tuple[Metric, ...]]:
    """This side as one window, and what it is beside the other."""
    protocol = str(case.params.get("protocol", ABBA))
    blocks = time_blocks(device, this, against, protocol)
    samples, telemetry = merged([block for block in blocks if block.side == THIS])
    return samples, telemetry, rival_metrics(case, protocol, blocks, device.facts.mig)


def time_blocks(device: Device, this: Launch, against: Launch, protocol: str) -> list[Block]:
    """Every block in its turn. A side keeps the pace that its first block found, so that its samples count alike."""
    how, group_s = (LONG, _GROUP_S) if protocol == ABBA else (SHORT, _SHORT_GROUP_S)
    launches: dict[Side, Launch] = {THIS: this, AGAINST: against}
    paces: dict[Side, Pace] = {}
    blocks = []
    for side in orders_of(protocol):
        block, paces[side] = _time_block(device, side, launches[side], how, group_s, paces.get(side))
        blocks.append(block)
    return blocks


def _time_block(
    device: Device, side: Side, launch: Launch, how: Protocol, group_s: float, pace: Pace | None
) -> tuple[Block, Pace]:
    load = device.start(launch, group_s, pace)
    groups, telemetry = keep_window(load, how)
    return Block(side, samples_of(groups, load, device.timer, _UNPOOLED), telemetry), load.pace
