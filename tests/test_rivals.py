"""Ratios of two implementations from the blocks that both were timed in."""

import math
from dataclasses import replace

import pytest

from harness.model import Case, Samples, Telemetry, Work
from harness.rivals import ABBA, AGAINST, SHORT_BLOCKS, THIS, Block, merged, rival_metrics

CASE = Case("gemm", {"impl": "triton", "against": "torch"}, (Work(1e12, "FLOP", "bf16", "2·m·n·k"),))
STEADY = Telemetry(sm_clock_mhz=1250.0, power_w=700.0, power_error_w=4.0, settled=True)


def block(side, seconds, clock_mhz=1250.0, power_w=700.0, count=40, **more):
    """A block of launches that all take so long."""
    samples = Samples((seconds,) * count, 10, 10 * count * seconds, "cuda_event", "stream")
    return Block(side, samples, replace(STEADY, sm_clock_mhz=clock_mhz, power_w=power_w, **more))


def abba(this_s, against_s, **more):
    """This side so long in its two blocks, the other in its two."""
    sides = ((THIS, this_s[0]), (AGAINST, against_s[0]), (AGAINST, against_s[1]), (THIS, this_s[1]))
    return [block(side, seconds, **more) for side, seconds in sides]


def metrics(blocks, protocol=ABBA):
    return {metric.name: metric for metric in rival_metrics(CASE, protocol, blocks)}


def test_the_rate_ratio_is_the_others_time_over_this_ones():
    told = metrics(abba((0.001, 0.001), (0.00102, 0.00102)))
    assert told["rate_ratio"].value == pytest.approx(1.02)
    assert told["rate_ratio"].better == "higher"
    assert told["rate_ratio"].label == "over torch"
    assert told["block_spread"].value == 0.0


def test_one_sides_blocks_are_busy_as_their_mean_is_and_unknown_where_one_is():
    """The first block's stood for all of them."""
    first, last = (block(THIS, 0.001, tensor_busy_ratio=busy, nvml_busy_ratio=1.0) for busy in (0.90, 0.94))
    telemetry = merged([first, last])[1]
    assert (telemetry.tensor_busy_ratio, telemetry.nvml_busy_ratio) == (pytest.approx(0.92), 1.0)
    unknown = block(THIS, 0.001, tensor_busy_ratio=None, missing={"tensor_busy_ratio": "too short"})
    telemetry = merged([first, unknown])[1]
    assert (telemetry.tensor_busy_ratio, telemetry.missing["tensor_busy_ratio"]) == (None, "too short")


def test_a_drift_that_both_share_cancels():
    """Every block is 1 % slower than the one before it: A B B A puts as much of that on either side."""
    slower = [1.01**i for i in range(4)]
    told = metrics(abba((0.001 * slower[0], 0.001 * slower[3]), (0.001 * slower[1], 0.001 * slower[2])))
    assert told["rate_ratio"].value == pytest.approx(1.0)
    assert told["block_spread"].value == pytest.approx(1.01**3 - 1)
    assert told["rate_ratio"].low < 1 < told["rate_ratio"].high


def test_the_interval_is_at_least_half_of_what_lies_between_blocks_of_one_side():
    told = metrics(abba((0.001, 0.00102), (0.001, 0.001)))
    assert math.log(told["rate_ratio"].high / told["rate_ratio"].value) == pytest.approx(math.log(1.02) / 2)


def test_on_one_power_limit_fewer_joules_are_more_rate_whatever_the_cycles():
    """This side needs more cycles at a higher clock, and less energy: both are told."""
    this = {"clock_mhz": 1300.0, "power_w": 690.0}
    blocks = [block(THIS, 0.001, **this), *(block(AGAINST, 0.00102) for _ in range(2)), block(THIS, 0.001, **this)]
    told = metrics(blocks)
    assert told["rate_ratio"].value == pytest.approx(1.02)
    assert told["cycle_ratio"].value == pytest.approx(1250 * 1.02 / 1300)
    assert told["energy_ratio"].value == pytest.approx(690 / (700 * 1.02))
    assert told["energy_ratio"].better == "lower"


def test_the_other_side_tells_its_own_figures():
    told = metrics(abba((0.001, 0.001), (0.002, 0.002), power_w=500.0))
    assert told["against_rate"].value == pytest.approx(1e12 / 0.002)
    assert told["against_cycles"].value == pytest.approx(1250e6 * 0.002)
    assert told["against_sm_clock"].value == 1250.0
    assert told["against_power"].value == 500.0
    assert told["against_energy_per_work"].value == pytest.approx(500 * 0.002 / 1e12)
    assert {told[name].label for name in told if name.startswith("against_")} == {"torch"}


def test_what_was_not_read_is_unknown_with_its_reason():
    told = metrics(abba((0.001, 0.001), (0.001, 0.001), clock_mhz=None, power_w=None))
    assert told["rate_ratio"].value == pytest.approx(1.0)
    assert (told["cycle_ratio"].value, told["cycle_ratio"].reason) == (
        None,
        "the true clock of a block was not measured",
    )
    assert (told["energy_ratio"].value, told["energy_ratio"].reason) == (None, "the power of a block was not measured")
    assert told["against_energy_per_work"].reason == "the power was not measured"


def test_launches_that_do_not_fill_their_blocks_have_no_cycles_and_no_joules():
    """Watts of the gaps were taken for the launches': the record gave no energy, its ratio over the other side did."""
    told = metrics(abba((0.001, 0.001), (0.001, 0.001), busy_ratio=0.5))
    assert told["rate_ratio"].value == pytest.approx(1.0)
    why = "launches fill only 50 % of a block"
    for name in ("cycle_ratio", "energy_ratio", "against_cycles", "against_energy_per_work"):
        assert (told[name].value, told[name].reason) == (None, why)
    assert told["against_power"].value == 700.0
    assert metrics(abba((0.001, 0.001), (0.001, 0.001), busy_ratio=0.97))["energy_ratio"].value == pytest.approx(1.0)


def test_a_mig_instance_has_no_ratio_of_joules():
    told = {m.name: m for m in rival_metrics(CASE, ABBA, abba((0.001, 0.001), (0.001, 0.001)), is_slice=True)}
    why = "the power is that of the whole card, of which this is a MIG instance"
    assert (told["energy_ratio"].value, told["energy_ratio"].reason) == (None, why)
    assert told["against_energy_per_work"].reason == why
    assert told["cycle_ratio"].value == pytest.approx(1.0)


def test_the_interval_of_joules_holds_what_chance_does_to_the_watts():
    """Launches that all took equally long gave joules without any doubt, whatever the error of the watts."""
    told = metrics(abba((0.001, 0.001), (0.001, 0.001)))["energy_ratio"]
    of_side = 1.96 * 4 / 700 / math.sqrt(2)
    assert math.log(told.high / told.value) == pytest.approx(of_side * math.sqrt(2))
    assert math.log(told.value / told.low) == pytest.approx(of_side * math.sqrt(2))
    unknown = metrics(abba((0.001, 0.001), (0.001, 0.001), power_error_w=None))["energy_ratio"]
    assert (unknown.value, unknown.low, unknown.high) == (pytest.approx(1.0), None, None)


def test_the_interval_of_joules_is_at_least_half_of_what_lies_between_blocks_of_one_side():
    watts = {"power_error_w": 0.0}
    blocks = [
        block(THIS, 0.001, power_w=700.0, **watts),
        *(block(AGAINST, 0.001, **watts) for _ in range(2)),
        block(THIS, 0.001, power_w=770.0, **watts),
    ]
    told = metrics(blocks)["energy_ratio"]
    assert math.log(told.high / told.value) == pytest.approx(math.log(1.1) / 2)


def test_short_blocks_give_a_ratio_of_cycles_and_no_other():
    pair = [block(THIS, 0.001, 1500.0), block(AGAINST, 0.00102, 1500.0)]
    told = metrics([*pair, *pair[::-1]] * 3, SHORT_BLOCKS)
    assert told["cycle_ratio"].value == pytest.approx(1.02)
    assert told["cycle_ratio"].low == pytest.approx(1.02)
    assert told["cycle_ratio"].label == "cycles of torch, short blocks"
    for name in ("rate_ratio", "energy_ratio"):
        assert told[name].value is None
        assert "share one clock" in told[name].reason
    assert "against_rate" not in told


def test_short_blocks_of_unlike_clocks_are_compared_by_their_cycles():
    """The card clocks higher in every second block: times would say 4 % where the work needs equally many cycles."""
    pair = [block(THIS, 0.001, 1500.0), block(AGAINST, 0.001 / 1.04, 1560.0)]
    assert metrics([*pair, *pair[::-1]] * 3, SHORT_BLOCKS)["cycle_ratio"].value == pytest.approx(1.0)


def test_short_blocks_without_a_clock_are_compared_by_time_and_say_so():
    pair = [block(THIS, 0.001, None), block(AGAINST, 0.00102, None)]
    told = metrics([*pair, *pair[::-1]] * 3, SHORT_BLOCKS)["cycle_ratio"]
    assert told.value == pytest.approx(1.02)
    assert told.label == "time at one clock of torch, short blocks"


def test_one_sides_blocks_become_one_window():
    blocks = [block(THIS, 0.001, 1200.0, 690.0, settled=True), block(THIS, 0.002, 1300.0, 700.0, settled=False)]
    samples, telemetry = merged(blocks)
    assert samples.seconds == (0.001,) * 40 + (0.002,) * 40
    assert samples.window_s == pytest.approx(0.4 + 0.8)
    assert samples.seconds_per_launch == pytest.approx(0.0015)
    assert (telemetry.sm_clock_mhz, telemetry.power_w) == (1250.0, 695.0)
    assert telemetry.power_error_w == pytest.approx(4.0 / math.sqrt(2))
    assert telemetry.settled is False


def test_what_throttles_any_block_throttles_the_window():
    """The first block alone told what limits: a card that grew hot in the last one was limited by nothing."""
    first = block(THIS, 0.001, limited_by="none", throttle_ratio={"thermal_hw": 0.0, "power_cap": 0.4})
    last = block(THIS, 0.001, limited_by="thermal", throttle_ratio={"thermal_hw": 0.5, "power_cap": 0.2})
    _, telemetry = merged([first, last])
    assert telemetry.limited_by == "thermal"
    assert telemetry.throttle_ratio == {"thermal_hw": pytest.approx(0.25), "power_cap": pytest.approx(0.3)}


@pytest.mark.parametrize("lost", [0, 1])
def test_share_of_a_block_that_nvml_does_not_tell_is_not_zero(lost):
    told = {"throttle_ratio": {"thermal_hw": 0.0, "power_cap": 0.4}, "event_ratio": {"power_cap": 0.8}}
    why = {"throttle_ratio": "power_cap: GPU is lost", "event_ratio": "GPU is lost"}
    blocks = [block(THIS, 0.001, **told), block(THIS, 0.001, **told)]
    blocks[lost] = block(THIS, 0.001, throttle_ratio={"thermal_hw": 0.0}, missing=why)
    _, telemetry = merged(blocks)
    assert (telemetry.throttle_ratio, telemetry.event_ratio) == ({"thermal_hw": 0.0}, {})
    assert telemetry.missing == why


def test_sources_of_power_that_contradict_each_other_in_one_block_are_told_with_its_reason():
    odd = block(THIS, 0.001, power_w=None, power_counter_w=700.0, energy_check_ratio=0.08, missing={"power_w": "apart"})
    _, telemetry = merged([block(THIS, 0.001, power_counter_w=690.0, energy_check_ratio=0.01), odd])
    assert (telemetry.power_w, telemetry.missing["power_w"]) == (None, "apart")
    assert (telemetry.power_counter_w, telemetry.energy_check_ratio) == (695.0, 0.08)


def test_more_samples_than_a_record_holds_are_pooled_alike_in_both_blocks():
    samples, _ = merged([block(THIS, 0.001, count=301), block(THIS, 0.003, count=299)])
    assert samples.launches_per_sample == 30
    assert len(samples.seconds) == 100 + 99
    assert samples.window_s == pytest.approx(sum(samples.seconds) * 30)


def test_a_block_without_a_clock_leaves_the_window_without_one():
    _, telemetry = merged([block(THIS, 0.001), block(THIS, 0.001, clock_mhz=None, power_error_w=None, settled=None)])
    assert (telemetry.sm_clock_mhz, telemetry.power_error_w, telemetry.settled) == (None, None, None)
