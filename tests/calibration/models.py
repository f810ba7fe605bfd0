"""What runs of a GPU are assumed to look like: noise models, the cases of a gate, and runs drawn from both.

All is in L, the logarithm of time a launch. One run's L of one case is

    level + the run's own + samples in the run + spikes + the boot's + drift, and for a throttled run what it lost

The three models are the assumptions that the gate's rules were designed with, made before anybody measured a GPU; the
fourth is the committed noise file, which was measured.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from harness.noise import NoiseFile

Array = np.ndarray[tuple[int, ...], np.dtype[np.float64]]
Flags = np.ndarray[tuple[int, ...], np.dtype[np.bool_]]


@dataclass(frozen=True)
class NoiseModel:
    """How runs differ. `between_sd` is from run to run, one figure for all cases or one a case.

    `shared_ratio` of its variance is the run's, alike in all cases; the rest is each case's own. A run's L is the mean
    of `samples` samples of `within_sd` whose neighbours correlate by `lag1`, of which `spike_ratio` are longer by
    `spike_size`. `throttle_ratio` of runs lose between `throttle_low` and `throttle_high`, in all cases, and the
    telemetry says so for `caught_ratio` of them. Only rows that say so draw throttled runs.
    """

    name: str
    between_sd: float | tuple[float, ...]
    within_sd: float
    lag1: float
    spike_ratio: float = 0.0
    spike_size: float = 0.05
    throttle_ratio: float = 0.0
    throttle_low: float = 0.0
    throttle_high: float = 0.0
    caught_ratio: float = 0.9
    shared_ratio: float = 0.5
    samples: int = 60

    @property
    def mean_sd(self) -> float:
        """What the samples within a run leave in its mean; correlated neighbours count as fewer."""
        fewer = (1 + self.lag1) / (1 - self.lag1)
        return float(self.within_sd * np.sqrt(fewer / self.samples))


QUIET = NoiseModel("quiet", 0.003, 0.002, 0.3)
TYPICAL = NoiseModel(
    "typical", 0.006, 0.0035, 0.6, spike_ratio=0.02, throttle_ratio=0.03, throttle_low=0.03, throttle_high=0.06
)
NOISY = NoiseModel("noisy", 0.010, 0.005, 0.8, throttle_ratio=0.05, throttle_low=0.03, throttle_high=0.08)


@dataclass(frozen=True)
class Case:
    """A case of the simulated gate: its family and whether it is a latency, which decide its margin."""

    family: str
    kind: str = "throughput"


# Forty cases: what a gate over `quick` and its neighbours compares.
FORTY = (
    *[Case("memory")] * 12,
    *[Case("gemm")] * 14,
    *[Case("collectives")] * 6,
    *[Case("driver", "latency")] * 8,
)


def measured_model(noise: NoiseFile) -> tuple[NoiseModel, tuple[Case, ...]]:
    """The noise file as a model, and its cases: each has its own measured spread, which holds all but the boot's."""
    cases = [case for group in noise.groups for case in group.cases]
    sds = tuple(case.time.sd_ratio or 0.0 for case in cases)
    return NoiseModel(noise.gpu.removeprefix("NVIDIA "), sds, 0.0, 0.0), tuple(Case(case.family) for case in cases)


@dataclass(frozen=True)
class Design:
    """How a comparison is measured: boots a side and runs a boot, in this order of time ("A" baseline, "B" candidate).

    `order` names boots one by one: "AB", or "ABBA" for two a side. `boot_sd` is what another boot changes, half of its
    variance alike in all cases; `drift` is what L gains from the first run to the last, whatever the side.
    """

    order: str = "AB"
    runs_a_boot: int = 5
    boot_sd: float = 0.0
    drift: float = 0.0
    has_throttled: bool = False

    @property
    def runs(self) -> int:
        """Runs a side."""
        return self.order.count("A") * self.runs_a_boot


@dataclass(frozen=True)
class Drawn:
    """Both sides' L of so many simulated comparisons: simulation, case, boot, run. NaN is a run that was dropped.

    `dropped` counts a side's dropped runs, by simulation.
    """

    baseline: Array
    candidate: Array
    dropped: tuple[Array, Array] = field(default_factory=lambda: (np.zeros(1), np.zeros(1)))


def draw(
    model: NoiseModel,
    design: Design,
    shifts: Array,
    simulations: int,
    rng: np.random.Generator,
) -> Drawn:
    """Comparisons in which the candidate's cases are slower by `shifts` (in L; a row a simulation, or one row)."""
    cases = shifts.shape[-1]
    times = _times(design)
    sides, dropped = [], []
    for side in "AB":
        boots = design.order.count(side)
        shape = (simulations, cases, boots, design.runs_a_boot)
        logs = _runs(model, shape, rng) + _boots(design.boot_sd, shape, rng) + design.drift * times[side]
        if side == "B":
            logs += shifts.reshape(-1, cases, 1, 1)
        caught = np.zeros((simulations, 1, boots, design.runs_a_boot), dtype=bool)
        if design.has_throttled:
            lost, caught = _throttled(model, caught.shape, rng)
            logs += lost
        sides.append(np.where(caught, np.nan, logs))
        dropped.append(caught.sum(axis=(1, 2, 3)).astype(float))
    return Drawn(sides[0], sides[1], (dropped[0], dropped[1]))


def _runs(model: NoiseModel, shape: Sequence[int], rng: np.random.Generator) -> Array:
    """Run to run, and what samples and spikes leave in a run's mean."""
    one_case = (shape[0], 1, *shape[2:])
    sd = np.asarray(model.between_sd).reshape(-1, 1, 1)
    shared, own = np.sqrt(model.shared_ratio), np.sqrt(1 - model.shared_ratio)
    logs = sd * (shared * rng.standard_normal(one_case) + own * rng.standard_normal(shape))
    if model.within_sd:
        logs += model.mean_sd * rng.standard_normal(shape)
    if model.spike_ratio:
        logs += np.log1p(model.spike_size * rng.binomial(model.samples, model.spike_ratio, shape) / model.samples)
    return logs


def _boots(boot_sd: float, shape: Sequence[int], rng: np.random.Generator) -> Array | float:
    if boot_sd == 0:
        return 0.0
    alike = rng.standard_normal((shape[0], 1, shape[2], 1))
    own = rng.standard_normal((*shape[:3], 1))
    return boot_sd * np.sqrt(0.5) * (alike + own)


def _times(design: Design) -> dict[str, Array]:
    """Where in the session each side's runs lie, 0 to 1: by boot, and runs within a boot one after the other."""
    count = len(design.order) * design.runs_a_boot
    places = np.arange(count).reshape(len(design.order), design.runs_a_boot) / (count - 1)
    return {side: places[[boot == side for boot in design.order]] for side in "AB"}


def _throttled(model: NoiseModel, shape: tuple[int, ...], rng: np.random.Generator) -> tuple[Array, Flags]:
    is_throttled = rng.random(shape) < model.throttle_ratio
    lost = is_throttled * -np.log1p(-rng.uniform(model.throttle_low, model.throttle_high, shape))
    return lost, is_throttled & (rng.random(shape) < model.caught_ratio)
