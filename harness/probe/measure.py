"""How one case is measured: right before fast, then a settled window, then right again.

No torch here: the device and the checker come from outside, so that a scripted device runs the same path.
"""

import contextlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from harness.model import Case, Check, Metric, Samples, Telemetry
from harness.probe.load import Checker, Device, Group, Injected, Launch, Load, Rotating, busy_ratio
from harness.probe.protocols import PeerProtocols
from harness.probe.repeats import compare_repeats
from harness.probe.shots import TIMER
from harness.statistics import equal_ranks, is_settled

Reference = Callable[[int], Iterable[tuple[object, object]]]
"""For buffer set i: pairs of (what the launch wrote, what a computation of higher precision expects)."""

Tell = Callable[[float, float, Telemetry], None]
"""Takes how many seconds of how many a soak has come, and what was watched in its last part."""

FIRST_SEED = 20250601
FRESH_SEED = 20250602

MOST_SAMPLES = 200
# Fewer than the stamps that a device keeps: groups of a millisecond and less do not fill a window of 2 s.
MOST_GROUPS = 1500
_SETTLE_STEP_S = 0.25
_POWER_STEP_S = 0.1


class CheckFailedError(Exception):
    """A result differs from its reference, so it is not timed, or its timing is not kept.

    `checks` are what was found until then, for the record.
    """

    def __init__(self, message: str, checks: tuple[Check, ...] = ()) -> None:
        super().__init__(message)
        self.checks = checks


@dataclass(frozen=True)
class Protocol:
    """How long a case is loaded, in seconds. Whoever changes it changes what every figure means.

    With `rest_s` the device rests so long before, and the first second of the load is kept as a burst. One that
    `is_cold` is to see the card warm up: nothing heats it before, and the window begins with the load.
    """

    window_s: float
    settle_s: float
    settle_cap_s: float
    preheat_cap_s: float
    rest_s: float = 0.0
    is_cold: bool = False


SMOKE = Protocol(window_s=0.2, settle_s=0.0, settle_cap_s=0.0, preheat_cap_s=0.0)
# 1.2 s hold the ten ticks of the energy counter that a power reading needs.
SUSTAINED = Protocol(window_s=1.2, settle_s=2.0, settle_cap_s=15.0, preheat_cap_s=60.0)
# A power-limited clock wanders by 2 % within tenths of a second: its mean takes longer to know.
SUSTAINED_COMPUTE = replace(SUSTAINED, window_s=2.0, rest_s=0.4)
# So long the card cools before a soak: the second of two does not begin as hot as the first one ended.
SOAK_REST_S = 30.0


def protocol_for(case: Case, profile: str, is_cpu: bool) -> Protocol:
    """The same case is loaded alike in every profile but smoke, so that quick and standard can be compared.

    A CPU has no regime to settle into, and nothing to cool.
    """
    if case.is_soak:
        window_s, rest_s = float(case.params["seconds"]), 0.0 if is_cpu else SOAK_REST_S
        return Protocol(window_s, settle_s=0.0, settle_cap_s=0.0, preheat_cap_s=0.0, rest_s=rest_s, is_cold=not is_cpu)
    if profile == "smoke" or is_cpu:
        return SMOKE
    is_compute = bool(case.work) and case.work[0].unit == "FLOP"
    return SUSTAINED_COMPUTE if is_compute else SUSTAINED


@dataclass(frozen=True)
class Subject:
    """What a family hands over to be measured. Launch number i uses buffer set i modulo `sets`.

    `outputs` are poisoned before every check. With `exact`, every element must equal the reference; otherwise the
    signal-to-noise ratio against it must reach `least_sqnr_db`.

    With `shots` the host's clock times so many single launches, each of which has done its work, or has thrown it, when
    it returns; `before` runs before each and is not timed. Another tool's protocol that times each launch alone runs it
    so too. A launch that does several operations at once says how many.

    `gpus` are those at work where it is not the worker's own alone, as CUDA numbers them; the first one launches.

    With `against`, another implementation of the same work is checked alike and timed in turn with this one, in blocks.

    `figures` tells numbers of the result itself, asked for after the last check: an error, a loss. That of a `quality`
    case is named `quality`, further ones begin with it.
    """

    launch: Launch
    inputs: Sequence[object]
    outputs: Sequence[object]
    reference: Reference
    sets: int = 1
    exact: bool = False
    least_sqnr_db: float = 50.0
    shots: int = 0
    operations: int = 1
    before: Launch | None = None
    gpus: tuple[int, ...] = ()
    against: Launch | None = None
    figures: Callable[[], Iterable[Metric]] | None = None


@dataclass(frozen=True)
class Measurement:
    """What measuring a case gave; without samples it was only checked.

    `metrics` are those that samples do not give, `figures` numbers of the result itself.
    """

    checks: tuple[Check, ...]
    samples: Samples | None = None
    telemetry: Telemetry | None = None
    metrics: tuple[Metric, ...] = ()
    figures: tuple[Metric, ...] = ()


def measure_case(
    case: Case,
    subject: Subject,
    device: Device,
    checker: Checker,
    protocol: Protocol,
    injected: Fraction = Fraction(0),
    peers: PeerProtocols | None = None,
    tell: Tell = lambda *_: None,
) -> Measurement:
    """Check, time, check again on fresh inputs. Raises CheckFailedError with both numbers if a result is wrong.

    `injected` is the share of work that is done and not counted. A case that names another tool's `protocol` is timed
    as that tool does, by `peers`. How far a soak has come goes to `tell`.
    """
    before = check(subject, device, checker, FIRST_SEED, "before")
    if case.checked_only:
        return Measurement((before,))
    launch = with_extra(Rotating(subject.launch, subject.sets), injected)
    metrics: tuple[Metric, ...] = ()
    if subject.against is not None:
        from harness.probe.rivals import time_rivals

        samples, telemetry, metrics = time_rivals(device, case, launch, Rotating(subject.against, subject.sets))
    elif case.is_soak:
        from harness.probe.soak import time_soak

        samples, telemetry, metrics = time_soak(device, launch, protocol, tell)
    elif subject.shots:
        samples, telemetry = time_shots(device, subject, injected)
    elif "protocol" in case.params:
        peers = peers or PeerProtocols()
        samples, telemetry = peers.time(str(case.params["protocol"]), device, subject, launch)
    else:
        samples, telemetry = time_window(device, launch, protocol, subject.operations)
    after = check(subject, device, checker, FRESH_SEED, "after")
    repeat = (check_repeat(subject, device, checker, (before, after)),) if case.deterministic else ()
    figures = tuple(subject.figures()) if subject.figures is not None else ()
    if case.kind == "quality" and not any(figure.name == "quality" for figure in figures):
        raise CheckFailedError("a quality case gave no figure of that name", (before, after, *repeat))
    for figure in figures:
        for number in (figure.value, figure.low, figure.high):
            if number is not None and not math.isfinite(number):
                raise CheckFailedError(f"the figure '{figure.name}' is {number}", (before, after, *repeat))
    return Measurement((before, after, *repeat), samples, telemetry, metrics, figures)


def check(subject: Subject, device: Device, checker: Checker, seed: int, when: str) -> Check:
    """Launch every buffer set once on random inputs and compare with the reference."""
    checker.fill(subject.inputs, seed)
    checker.poison(subject.outputs)
    _launch_every_set(subject, device)
    errors = [checker.error(a, e, subject.exact) for i in range(subject.sets) for a, e in subject.reference(i)]
    if not errors:
        raise CheckFailedError(f"nothing was compared {when} the window: the reference gave no pair")
    result = _judge(errors, subject, when)
    if not result.passed:
        raise CheckFailedError(_explain(result))
    return result


def check_repeat(subject: Subject, device: Device, checker: Checker, earlier: tuple[Check, ...] = ()) -> Check:
    """The same inputs twice: every output must have the same bits. A difference is looked into before it is raised."""
    if not subject.outputs:
        raise CheckFailedError("the case says it is deterministic, but no output was given to compare")

    def again(is_filled_anew: bool) -> None:
        if is_filled_anew:
            checker.fill(subject.inputs, FRESH_SEED)
        checker.poison(subject.outputs)
        _launch_every_set(subject, device)

    told = compare_repeats(subject.outputs, checker, again)
    detail = f"of {told.launches} launches on the same inputs gave other bits"
    result = Check("repeat", "exact", told.differing == 0, float(told.differing), 0.0, detail)
    if not result.passed:
        raise CheckFailedError(told.reason, (*earlier, result))
    return result


def _launch_every_set(subject: Subject, device: Device) -> None:
    device.synchronize()  # a launch on a stream of its own does not wait for the poison
    for i in range(subject.sets):
        if subject.before is not None:
            subject.before(i)
        subject.launch(i)
        if subject.against is not None:
            subject.against(i)
    device.synchronize()


def with_extra(launch: Launch, injected: Fraction) -> Launch:
    """The launch, or one that does more than it counts."""
    return Injected(launch, injected) if injected else launch


def time_shots(device: Device, subject: Subject, injected: Fraction = Fraction(0)) -> tuple[Samples, Telemetry]:
    """Single launches by the host's clock. The check before them was their warm-up, and nothing has to settle.

    An extra launch now and then would slow down the tail alone, so that each is held longer instead.
    """
    seconds, telemetry = device.time_shots(subject.launch, subject.shots, subject.before, injected)
    refuse_bad_samples(seconds)
    kept = at_equal_ranks(seconds)
    samples = Samples(
        seconds=tuple(call_s / subject.operations for call_s in kept),
        launches_per_sample=subject.operations,
        window_s=sum(kept),
        timer=TIMER,
        queue="host",
        shots=len(seconds),
        slowest_s=max(seconds) / subject.operations,
    )
    return samples, telemetry


def at_equal_ranks(seconds: Sequence[float], most: int = MOST_SAMPLES) -> list[float]:
    """At most so many of the values, those in the middle of equal shares by rank, in the order in which they came.

    Their percentiles are those of all values, which every tenth value, or means of ten, would not give.
    """
    count = len(seconds)
    if count <= most:
        return list(seconds)
    by_rank = sorted(range(count), key=lambda i: seconds[i])
    return [seconds[i] for i in sorted(by_rank[rank] for rank in equal_ranks(count, most))]


def time_window(device: Device, launch: Launch, protocol: Protocol, operations: int = 1) -> tuple[Samples, Telemetry]:
    """Load the device until it has settled, then keep the groups of one window.

    Of a launch that does several operations, what is kept are seconds of one.
    """
    load = device.start(launch, protocol.window_s / MOST_SAMPLES * 1.25, rest_s=protocol.rest_s)
    groups, telemetry = keep_window(load, protocol)
    if operations == 1:
        return samples_of(groups, load, device.timer), telemetry
    groups = [replace(group, launches=group.launches * operations) for group in groups]
    timeline, burst = (of_one(columns, operations) for columns in (telemetry.timeline, telemetry.burst))
    return samples_of(groups, load, device.timer), replace(telemetry, timeline=timeline, burst=burst)


def keep_window(load: Load, protocol: Protocol) -> tuple[list[Group], Telemetry]:
    """The groups of one window of a load that has settled, and what was watched meanwhile; the load is over then.

    Where a protocol waits for nothing to settle, its first `settle_s` are dropped.
    """
    try:
        settled, settle_s = settle(load, protocol)
        began_s = load.run_group().ended_s
        if protocol.settle_cap_s == 0 and protocol.settle_s > 0:
            began_s = _run_until(load, began_s + protocol.settle_s)[-1].ended_s
        load.mark()
        groups = _run_until(load, began_s + protocol.window_s)
    except BaseException:
        # Whatever watches this load must not watch the next one too.
        with contextlib.suppress(RuntimeError):
            load.finish()
        raise
    busy = busy_ratio(groups, began_s)
    return groups, replace(load.finish(), settled=settled, settle_s=settle_s, busy_ratio=busy)


def of_one(columns: Mapping[str, Sequence[float | None]], operations: int) -> dict[str, tuple[float | None, ...]]:
    """Columns of telemetry with the seconds of one operation where they hold a launch's, to five digits."""
    return {
        name: tuple(None if v is None else float(f"{v / operations:.5g}") for v in values)
        if name == "launch_s"
        else tuple(values)
        for name, values in columns.items()
    }


def settle(load: Load, protocol: Protocol) -> tuple[bool | None, float]:
    """Run until neither power nor true clock drifts; whether they stopped, and the seconds it took.

    `None` where the device tells neither, so that nobody knows.
    """
    if protocol.settle_cap_s == 0:
        return None, 0.0
    clock: list[tuple[float, float]] = []
    began_s = judged_s = load.run_group().ended_s
    while True:
        group = load.run_group()
        elapsed_s = group.ended_s - began_s
        if group.clock_mhz is not None:
            clock.append((group.ended_s, group.clock_mhz))
        if elapsed_s < protocol.settle_s or group.ended_s - judged_s < _SETTLE_STEP_S:
            continue
        judged_s = group.ended_s
        power = thinned([reading for reading in load.recent_power() if reading[0] >= began_s], _POWER_STEP_S)
        known = [series for series in (clock, power) if series]
        if not known:
            return None, elapsed_s
        if all(is_settled(*_columns(series)) for series in known):
            return True, elapsed_s
        if elapsed_s >= protocol.settle_cap_s:
            return False, elapsed_s


def thinned(readings: Sequence[tuple[float, float]], step_s: float) -> list[tuple[float, float]]:
    """One reading a step: NVML repeats a value until its next refresh, and repeats are not independent readings."""
    kept: list[tuple[float, float]] = []
    for at_s, value in readings:
        if not kept or at_s - kept[-1][0] >= step_s:
            kept.append((at_s, value))
    return kept


def _run_until(load: Load, end_s: float) -> list[Group]:
    """Groups until the clock on the wall says `end_s`: blocked groups fill it as well as those that follow closely."""
    groups = [load.run_group(), load.run_group()]
    while len(groups) < MOST_GROUPS and groups[-1].ended_s < end_s:
        groups.append(load.run_group())
    return groups


def pooled(groups: Sequence[Group], most: int = MOST_SAMPLES) -> list[Group]:
    """At most so many groups, each of equally many neighbours together; what is left over at the end is dropped."""
    size = math.ceil(len(groups) / most)
    pools = [groups[first : first + size] for first in range(0, len(groups) - size + 1, size)]
    return [
        Group(
            seconds=sum(group.seconds for group in pool),
            launches=sum(group.launches for group in pool),
            ended_s=pool[-1].ended_s,
            starved=any(group.starved for group in pool),
        )
        for pool in pools
    ]


def refuse_bad_samples(seconds: Sequence[float]) -> None:
    """Raise if any sample is not a positive number: none of them ever reaches a file."""
    bad = [s for s in seconds if not 0 < s < math.inf]
    if bad:
        raise CheckFailedError(f"{len(bad)} of {len(seconds)} samples are not positive numbers (first: {bad[0]})")


def samples_of(all_groups: Sequence[Group], load: Load, timer: str, most: int = MOST_SAMPLES) -> Samples:
    """At most so many samples of the groups; raises if any is not a positive number."""
    groups = pooled(all_groups, most)
    launches = groups[0].launches
    seconds = tuple(group.seconds / launches for group in groups)
    refuse_bad_samples(seconds)
    return Samples(
        seconds=seconds,
        launches_per_sample=launches,
        window_s=sum(group.seconds for group in groups),
        timer=timer,
        queue=load.pace.queue,
        starved=sum(group.starved for group in groups),
    )


def _judge(errors: Sequence[float], subject: Subject, when: str) -> Check:
    if subject.exact:
        worst = max(errors)
        return Check(when, "exact", worst == 0, worst, 0.0, "elements that differ")  # type: ignore[arg-type]
    # A NaN must never pass: min() would skip it or not, depending on its place.
    worst = -math.inf if any(math.isnan(error) for error in errors) else min(errors)
    passed = worst >= subject.least_sqnr_db
    finite = worst if math.isfinite(worst) else None
    return Check(when, "sqnr_db", passed, finite, subject.least_sqnr_db)  # type: ignore[arg-type]


def _explain(result: Check) -> str:
    where = {"before": "before timing", "after": "after timing, on fresh inputs"}[result.when]
    if result.measure == "exact":
        return f"wrong result {where}: {result.worst:.0f} elements differ from the reference"
    got = "not finite" if result.worst is None else f"{result.worst:.1f} dB"
    return f"wrong result {where}: SQNR against the reference is {got}, at least {result.bound:.0f} dB is required"


def _columns(series: Sequence[tuple[float, float]]) -> tuple[list[float], list[float]]:
    return [at_s for at_s, _ in series], [value for _, value in series]
