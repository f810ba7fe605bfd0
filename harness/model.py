"""What a run consists of: cases, samples, telemetry, metrics, records. Frozen data; floor 1 of the suite.

    Case -> Samples + Telemetry -> Metric -> Record -> Run

Inside there are only seconds, bytes, FLOP, watts, joules and MHz where NVML speaks MHz. What is unknown is
`None`, and its reason stands in `missing` or `reason` beside it.
"""

import dataclasses
import math
import re
import statistics
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from typing import Any, Literal, TypeVar

from harness.errors import HarnessError

Param = str | int
Kind = Literal["throughput", "latency", "quality"]
Outcome = Literal["measured", "checked", "not_applicable", "failed", "not_run"]
Better = Literal["higher", "lower", ""]

PROFILES = ("smoke", "quick", "standard", "full")
# Beside those, which are nested: minutes of one load, in cases that no other profile holds.
SOAK = "soak"

_KEY_VALUE = re.compile(r"[A-Za-z0-9_.+-]+")


@dataclass(frozen=True)
class Work:
    """What the hardware must do at least in one launch, and which peak bounds it.

    `peak` names a figure of the data sheet (`memory`, `bf16`, `host_link`, ...); `None` means that no share is
    given, and `no_peak` says why. `label` is the convention a reader needs: "read + write", "one way".
    """

    amount: float
    unit: Literal["B", "FLOP"]
    peak: str | None
    label: str
    no_peak: str = ""


@dataclass(frozen=True)
class Case:
    """One thing to measure, described without a tensor: its key, its work, and what it needs of the device.

    The first `work` is the headline. `footprint_bytes` is all that the launches rotate through, so that the
    share that L2 could serve is known. A parameter equal to its entry in `defaults` is left out of the key.
    """

    op: str
    params: Mapping[str, Param]
    work: tuple[Work, ...]
    kind: Kind = "throughput"
    defaults: Mapping[str, Param] = field(default_factory=dict)
    memory_bytes: int = 0
    footprint_bytes: int = 0
    deterministic: bool = False
    not_applicable: str = ""
    checked_only: str = ""

    def __post_init__(self) -> None:
        for name, value in {"op": self.op, **self.params}.items():
            if not _KEY_VALUE.fullmatch(str(value)) or not _KEY_VALUE.fullmatch(name):
                raise ValueError(f"{name}={value!r} cannot stand in a key: use letters, digits and _.+- only")
        if self.kind == "throughput" and not self.work:
            raise ValueError(f"{self.key}: a throughput case declares its work")

    @property
    def key(self) -> str:
        """`op/name=value,...`: sorted, built from content, never from file or test names."""
        shown = {n: v for n, v in self.params.items() if self.defaults.get(n) != v}
        return f"{self.op}/" + ",".join(f"{n}={shown[n]}" for n in sorted(shown))

    @property
    def gpus(self) -> int:
        """How many GPUs are at work: one a rank, or both ends of a pair (`from` and `to`, as CUDA numbers them)."""
        if "from" in self.params and "to" in self.params:
            return len({self.params["from"], self.params["to"]})
        return int(self.params.get("ranks", 1))

    @property
    def is_soak(self) -> bool:
        """Whether one load is watched for minutes from its start, for the `seconds` in its key."""
        return self.op.startswith(f"{SOAK}_")


@dataclass(frozen=True)
class Party:
    """The ranks that torchrun started, as many on each host. `network_bytes_per_s` is one host's line rate one way."""

    hosts: int
    ranks: int
    network_bytes_per_s: float | None = None
    no_network: str = ""


@dataclass(frozen=True)
class DeviceFacts:
    """What a family needs to know of the device to declare its cases; `None` is unknown.

    Without a `party` the ranks of a case are the GPUs of this host.
    """

    kind: Literal["cuda", "cpu", "scripted"]
    name: str
    torch_device: str
    gpu_count: int = 0
    compute_capability: tuple[int, int] | None = None
    sm_count: int | None = None
    memory_bytes: int | None = None
    free_bytes: int | None = None
    l2_bytes: int | None = None
    shared_memory_bytes: int | None = None
    max_sm_clock_mhz: float | None = None
    memory_clock_mhz: float | None = None
    memory_bus_bits: int | None = None
    triton: Literal["compiled", "interpreted", "absent"] = "absent"
    numa: str = "local"
    mig: bool = False
    party: Party | None = None

    def at_least(self, major: int, minor: int = 0) -> bool:
        """Whether this is an NVIDIA GPU of that compute capability or later."""
        return self.compute_capability is not None and self.compute_capability >= (major, minor)

    def lacks(self, what: str, major: int, minor: int = 0) -> str:
        """Why this GPU cannot do what needs that compute capability, or nothing; a CPU has none and is not asked."""
        if self.kind != "cuda" or self.at_least(major, minor):
            return ""
        return f"{what} needs compute capability {major}.{minor}, {self.name} lacks it"

    @property
    def no_triton(self) -> str:
        """Why no kernel of Triton's runs here, or nothing."""
        return "Triton is not installed" if self.triton == "absent" else ""

    @property
    def no_triton_figures(self) -> str:
        """Why a time of Triton's kernels would mean nothing here, or nothing."""
        return "Triton runs in its interpreter: right or wrong, but not timed" if self.triton == "interpreted" else ""

    def sets(self, bytes_per_set: int, l2_multiples: int = 20) -> int:
        """How many buffer sets launches rotate through, so that L2 cannot serve the next visit."""
        if self.l2_bytes is None:
            return 2
        return max(1, math.ceil(l2_multiples * self.l2_bytes / bytes_per_set))


QueueKind = Literal["stream", "graph", "blocked", "loop", "eager", "host"]


@dataclass(frozen=True)
class Samples:
    """Time of one window: seconds a launch, one value a group of launches, at most 200 groups.

    `queue` says how the device was kept busy: `stream` (launches queued ahead), `graph`, `blocked` (each group
    behind its own blocking kernel), `loop` or `eager` (onto an idle device, many in a row or one at a time, so that
    the host's cost of launching is in the time), or `host` (the CPU itself). `starved` counts groups before which the
    queue had run dry.

    Between ranks a sample is the slowest rank's; `rank_seconds` is each rank's own mean, by rank. `host_s` is what a
    launch costs the host until the call returns, where that was timed. `part_seconds` is the time of each named part of
    a launch by itself, the slowest rank's, as means over equal stretches of the window.

    With `shots` these are single calls by the host's clock, so many of them. Of more than 200, those at 200 equally
    spaced ranks are kept, in the order in which they came: percentiles are those of all calls, and what the rarest took
    is in `slowest_s` alone.

    Of a launch that does several operations at once (the nodes of a graph, the loads of a chain), `launches_per_sample`
    counts them, and seconds are those of one.
    """

    seconds: tuple[float, ...]
    launches_per_sample: int
    window_s: float
    timer: str
    queue: QueueKind
    starved: int = 0
    shots: int = 0
    slowest_s: float | None = None
    rank_seconds: tuple[float, ...] = ()
    host_s: float | None = None
    part_seconds: Mapping[str, tuple[float, ...]] = field(default_factory=dict)

    @property
    def launches(self) -> int:
        """Launches in the whole window."""
        return self.launches_per_sample * len(self.seconds)

    @property
    def seconds_per_launch(self) -> float:
        """Total time over total launches: what comparisons of runs stand on."""
        return self.window_s / self.launches


@dataclass(frozen=True)
class Telemetry:
    """What the device did in the samples' window. Reasons for what is unknown stand in `missing`, by field name.

    `busy_ratio` is the samples' device time over the window's time by the clock on the wall: what lies between groups
    (blocking kernels, restored buffers) is watched too, but it is not the launches'.

    `power_w` is the power that counts, by `power_method`: the energy counter's slope where the other two sources, the
    instant field and the 20 ms samples, do not contradict it. All that were read stand beside it.
    `energy_check_ratio` is the counter over the other source that is farthest from it, minus 1.

    `algorithm` ("ring", "tree", "nvls", ...), `protocol` and `channels` are what NCCL chose for a collective,
    `transport` ("p2p", "shm", "net/ib/gdrdma", ...) what its ranks' data go through.

    `nvlink_links` are the NVLinks that are up between the two GPUs of a pair, or that bound what goes between them.

    `tensor_busy_ratio` and `dram_busy_ratio` are the performance monitor's, `nvml_busy_ratio` is what NVML calls GPU
    utilisation: the share of its last sampling period in which any kernel ran.

    `changes` tells what happened to the card, from before the case's first launch until after its last: Xid messages,
    ECC and NVLink errors, limits set by others, processes that came, a driver that was reloaded.

    `window_began_at` is UTC to the millisecond, so that another instrument's record can be laid beside.

    `timeline` holds columns at 10 Hz from the load's start to the window's end; its `time_s` is 0 where the window
    begins, so what is below 0 is the settling. `burst` holds the first second from idle. In both `launch_s` is
    seconds a launch. A soak's has at most 240 steps, from the load's start; `time_s` is where each ends, and columns of
    their own hold a step's extremes and the share of it in which the clock was held down.
    """

    settled: bool | None = None
    settle_s: float | None = None
    busy_ratio: float | None = None
    window_began_at: str = ""
    sm_clock_mhz: float | None = None
    sm_clock_slowest_mhz: float | None = None
    sm_clock_fastest_mhz: float | None = None
    sms_covered: int | None = None
    nvml_sm_clock_mhz: float | None = None
    memory_clock_mhz: float | None = None
    power_w: float | None = None
    power_method: str = ""
    power_error_w: float | None = None
    power_counter_w: float | None = None
    power_instant_w: float | None = None
    power_samples_w: float | None = None
    energy_check_ratio: float | None = None
    idle_power_w: float | None = None
    power_limit_w: float | None = None
    temperature_start_c: float | None = None
    temperature_end_c: float | None = None
    memory_temperature_c: float | None = None
    throttle_ratio: Mapping[str, float] = field(default_factory=dict)
    event_ratio: Mapping[str, float] = field(default_factory=dict)
    limited_by: str = "unknown"
    tensor_busy_ratio: float | None = None
    dram_busy_ratio: float | None = None
    nvml_busy_ratio: float | None = None
    longest_gap_s: float | None = None
    pcie_generation: int | None = None
    pcie_lanes: int | None = None
    nvlink_links: int | None = None
    algorithm: str = ""
    protocol: str = ""
    channels: int | None = None
    transport: str = ""
    changes: tuple[str, ...] = ()
    timeline: Mapping[str, tuple[float | None, ...]] = field(default_factory=dict)
    burst: Mapping[str, tuple[float | None, ...]] = field(default_factory=dict)
    missing: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Check:
    """One comparison with a reference of higher precision. `worst` and `bound` are in `measure`'s unit."""

    when: Literal["before", "after", "repeat"]
    measure: Literal["exact", "sqnr_db", "scripted"]
    passed: bool
    worst: float | None
    bound: float | None
    detail: str = ""


@dataclass(frozen=True)
class Metric:
    """A derived figure in base units (a ratio is 0..1), with its 95 % interval where one is known.

    The interval is what chance does within the run. `systematic_ratio` is the instrument's own error on top, relative,
    which no repetition shows: 0.05 for joules of a board's sensor.
    """

    name: str
    value: float | None
    unit: str
    better: Better = ""
    low: float | None = None
    high: float | None = None
    label: str = ""
    reason: str = ""
    systematic_ratio: float | None = None


@dataclass(frozen=True)
class Record:
    """One case of one run: what came of it, and everything needed to judge it."""

    key: str
    family: str
    case: Case
    outcome: Outcome
    reason: str = ""
    samples: Samples | None = None
    telemetry: Telemetry | None = None
    checks: tuple[Check, ...] = ()
    metrics: tuple[Metric, ...] = ()
    warnings: tuple[str, ...] = ()
    worker: int = 0
    predecessor: str = ""
    started_at: str = ""
    wall_s: float | None = None

    def metric(self, name: str) -> Metric | None:
        """The metric of that name, or `None` where this record has none."""
        return next((m for m in self.metrics if m.name == name), None)

    def positive(self, name: str) -> float | None:
        """That metric's value where it is known and can stand in a ratio: a finite number above zero."""
        metric = self.metric(name)
        return metric.value if metric is not None and metric.value is not None and 0 < metric.value < math.inf else None

    @property
    def compared_s(self) -> float | None:
        """Seconds a launch by which runs are compared: of a latency the median call, of all else the window's mean.

        Whatever shares a processor's core slows some calls by half again. How many moves their mean, not their median.
        """
        if self.samples is None:
            return None
        is_latency = self.case.kind == "latency"
        return statistics.median(self.samples.seconds) if is_latency else self.samples.seconds_per_launch


@dataclass(frozen=True)
class Peak:
    """A theoretical peak per second. `provenance` says how far to trust it; only `recalled` is unverified."""

    value: float
    unit: Literal["B", "FLOP"]
    provenance: Literal["read", "second_hand", "recalled", "derived"]
    source: str
    clock_mhz: float | None = None

    @property
    def is_verified(self) -> bool:
        """Whether anyone read the figure in a document or on a device, or it follows from such facts."""
        return self.provenance != "recalled"


@dataclass(frozen=True)
class PeakSheet:
    """The peaks that hold for a device, how they were found, and the tensor rates per clock and SM behind them."""

    gpu: str | None
    match: Literal["exact", "derived", "none"]
    reason: str = ""
    peaks: Mapping[str, Peak] = field(default_factory=dict)
    flop_per_clock_per_sm: Mapping[str, int] = field(default_factory=dict)
    sm_count: int | None = None


@dataclass(frozen=True)
class Fact:
    """One fact of the environment. `role`: must match between compared runs, informative, or sensitive."""

    value: str | int | float | bool | None
    status: str = "ok"
    role: Literal["match", "informative", "sensitive"] = "match"


@dataclass(frozen=True)
class RulerPart:
    """One part of the ruler's check: what was read, and between which bounds it is right.

    `passed` is `None` where the part could not be judged; `detail` then says why.
    """

    name: str
    passed: bool | None
    value: float | None
    unit: str
    low: float | None = None
    high: float | None = None
    detail: str = ""


@dataclass(frozen=True)
class Ruler:
    """What the check of clock and timer found before the first case.

    `off`: a part read what cannot be, so no time of this run can be trusted. `information`: a CPU, which nothing is
    judged on. `unknown`: too little could be judged.
    """

    status: Literal["ok", "off", "information", "unknown"]
    parts: tuple[RulerPart, ...] = ()
    reason: str = ""

    def part(self, name: str) -> RulerPart | None:
        """The part of that name, or `None` where it was not tried."""
        return next((p for p in self.parts if p.name == name), None)


@dataclass(frozen=True)
class Worker:
    """One process that measured cases of a run, and how it ended ("finished", "signal 9", "exit 3").

    `idle` is the card at rest with the context open, before the pre-heat: `power_w`, `seconds`, `temperature_c`.
    """

    number: int
    started_at: str
    ended: str = ""
    preheat: Mapping[str, float | bool | str | None] = field(default_factory=dict)
    idle: Mapping[str, float | bool | str | None] = field(default_factory=dict)
    ruler: Ruler | None = None


@dataclass(frozen=True)
class Order:
    """What a run was asked for; the same words as the command line and `make bench`.

    `inject` slows cases down on purpose (`gemm=3%`). It is not in their keys: a gate must be able to compare such a run
    with a clean one.

    `minutes` is how long a soak loads the card, all of its cases together; `None` is the family's own choice.
    """

    profile: str = "standard"
    only: tuple[str, ...] = ()
    device: str = "auto"
    gpu: str = "0"
    concurrent: int = 1
    declare: str = ""
    label: str = ""
    resumed_from: str = ""
    inject: tuple[str, ...] = ()
    minutes: float | None = None


@dataclass(frozen=True)
class Run:
    """One pass over a plan, by one or more workers."""

    run_id: str
    created_at: str
    schema_version: int
    suite_version: str
    order: Order
    device: DeviceFacts
    sheet: PeakSheet
    environment: Mapping[str, Fact]
    workers: tuple[Worker, ...]
    records: tuple[Record, ...]
    partial: str = ""
    site_key: str = ""
    source_hash: Mapping[str, str] = field(default_factory=dict)

    @property
    def ruler(self) -> Ruler | None:
        """The worst that any worker's check of clock and timer found; `None` where none was made."""
        order = ("off", "unknown", "information", "ok")
        found = [worker.ruler for worker in self.workers if worker.ruler is not None]
        return min(found, key=lambda ruler: order.index(ruler.status), default=None)

    def fact(self, name: str) -> str | int | float | bool | None:
        """The value of a fact of the environment; `None` where it is unknown."""
        fact = self.environment.get(name)
        return None if fact is None else fact.value

    @property
    def measured(self) -> tuple[Record, ...]:
        """The records that carry figures, in the order in which they were measured."""
        return tuple(r for r in self.records if r.outcome == "measured")

    @property
    def not_measured(self) -> tuple[Record, ...]:
        """The records without figures; each has its reason."""
        return tuple(r for r in self.records if r.outcome != "measured")


def is_wanted(family: str, key: str, only: Sequence[str]) -> bool:
    """Whether any pattern names the family or matches the key; no pattern wants everything."""
    return not only or any(fnmatchcase(family, p) or fnmatchcase(key, p) or fnmatchcase(key, f"{p}/*") for p in only)


def moment_of(text: str) -> datetime:
    """When a run file says that something began, in UTC; `HarnessError` where that is no time."""
    try:
        found = datetime.fromisoformat(text)
        return found.astimezone(UTC) if found.tzinfo else found.replace(tzinfo=UTC)
    except (ValueError, OverflowError) as error:
        raise HarnessError(f"a run says that it began at {text[:40]!r}, which is no time. Leave it out.") from error


T = TypeVar("T")

_EMPTY: tuple[Any, ...] = (None, "", (), {})


def to_plain(data: Any) -> Any:
    """Dataclasses as dictionaries, tuples as lists: what JSON can hold.

    A field at its default is left out only where that default is empty (`None`, "", no entry): a file must not change
    its meaning when a later release changes a default.
    """
    if dataclasses.is_dataclass(data) and not isinstance(data, type):
        return {
            f.name: to_plain(getattr(data, f.name)) for f in dataclasses.fields(data) if not _is_empty_default(data, f)
        }
    if isinstance(data, Mapping):
        return {str(k): to_plain(v) for k, v in data.items()}
    if isinstance(data, list | tuple):
        return [to_plain(v) for v in data]
    return data


def from_plain(cls: type[T], data: Any) -> T:
    """The inverse of `to_plain` for data that this suite wrote itself; a foreign file goes through `store`."""
    return typing.cast(T, _build(cls, data))


def _is_empty_default(data: Any, f: "dataclasses.Field[Any]") -> bool:
    value = getattr(data, f.name)
    if value not in _EMPTY:
        return False
    has_factory = f.default_factory is not dataclasses.MISSING
    return has_factory or (f.default is not dataclasses.MISSING and bool(value == f.default))


def _build(annotation: Any, data: Any) -> Any:
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if dataclasses.is_dataclass(annotation) and isinstance(annotation, type):
        hints = typing.get_type_hints(annotation)
        return annotation(**{name: _build(hints[name], value) for name, value in data.items()})
    if origin in (typing.Union, types.UnionType):
        if data is None:
            return None
        present = [a for a in arguments if a is not type(None)]
        return _build(present[0], data) if len(present) == 1 else data
    if origin is tuple:
        inner = arguments[0] if len(arguments) == 2 and arguments[1] is Ellipsis else None
        return tuple(_build(inner, v) if inner else v for v in data)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return {k: _build(arguments[1], v) for k, v in data.items()}
    if isinstance(origin, type) and issubclass(origin, Sequence):
        return [_build(arguments[0], v) for v in data]
    return data
