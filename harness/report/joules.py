"""What joules carry, in one line: chance, the board's sensor, and the card at rest."""

import statistics
from collections.abc import Iterator, Sequence

from harness import units
from harness.model import Metric, Record, Run
from harness.report.text import percent_range


def energy_remark(runs: Sequence[Run], family: str) -> str:
    """What stands beside pJ, the sensor's own error on top, and what the card draws at rest; "" if none is known.

    How much lower energy is without that is said of one family alone: elsewhere most of it may be the card at rest.
    """
    records = [record for run in runs for record in run.measured]
    net = _net([record for record in records if record.family == family])
    said = [part for part in (_errors(records, len(runs)), _at_rest(records, net)) if part]
    return f"pJ: {'; '.join(said)}" if said else ""


def _errors(records: Sequence[Record], run_count: int) -> str:
    systematics = [m.systematic_ratio for m in _metrics(records, "energy_per_work") if m.systematic_ratio is not None]
    if not systematics:
        return ""
    chance = "± is chance within the run" if run_count == 1 else "sd is over the runs"
    return f"{chance}; the board's sensor adds {units.format_percent(max(systematics), 0)} (between cards)"


def _at_rest(records: Sequence[Record], net: str) -> str:
    idle_w = [r.telemetry.idle_power_w for r in records if r.telemetry and r.telemetry.idle_power_w is not None]
    if not idle_w:
        return ""
    return f"idle with the context open draws {statistics.median(idle_w):.0f} W{net}"


def _net(records: Sequence[Record]) -> str:
    """How much lower the energy of a unit is without what the card draws at rest."""
    pairs = [(r.metric("energy_net_per_work"), r.metric("energy_per_work")) for r in records]
    ratios = [net.value / gross.value for net, gross in pairs if net and gross and net.value and gross.value]
    return f", net of it pJ is {percent_range(1 - max(ratios), 1 - min(ratios))} lower here" if ratios else ""


def _metrics(records: Sequence[Record], name: str) -> Iterator[Metric]:
    return (metric for record in records if (metric := record.metric(name)))
