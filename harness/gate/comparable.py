"""Which facts must be equal on both sides of a gate, which a declared change brings with it, and which only inform.

Not every fact that a set must share: a kernel's patch level decides nothing about a GEMM. The lists here are the rule.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from harness.errors import HarnessError
from harness.gate.sides import SideRun
from harness.model import Fact

# Must be known: what is unknown on both sides is not equal.
ESSENTIAL = ("gpu", "sm_count", "memory_bytes", "power_limit_w", "ecc", "torch", "cuda_runtime")
# Must be equal for every case.
GPU_FACTS = (
    *("gpu", "device_kind", "architecture", "compute_capability", "sm_count", "cuda_cores", "l2_bytes"),
    *("board_part", "vbios", "inforom", "memory_bytes", "memory_mib", "memory_bus_bits"),
    *("power_limit_w", "power_limit_default_w", "power_limit_least_w", "power_limit_most_w", "power_source"),
    *("power_smoothing", "power_smoothing_settings", "edpp_percent", "workload_power_profiles"),
    *(
        "max_sm_clock_mhz",
        "customer_boost_sm_clock_mhz",
        "application_sm_clock_mhz",
        "application_sm_clock_default_mhz",
    ),
    *("max_memory_clock_mhz", "customer_boost_memory_clock_mhz", "application_memory_clock_mhz"),
    *("application_memory_clock_default_mhz", "sm_clock_offset_mhz", "memory_clock_offset_mhz", "auto_boost"),
    *("persistence", "compute_mode", "ecc", "mig", "mig_device", "mig_profile", "mig_compute_slices"),
    *("mig_memory_slices", "mig_sm_count", "virtualization", "hypervisor", "confidential_computing"),
    *("confidential_multi_gpu", "dram_encryption", "declared", "concurrent", "profile", "run_schema"),
)
SOFTWARE_FACTS = (
    *("driver", "driver_branch", "nvml", "cuda_driver", "gsp", "gsp_firmware", "kernel_module"),
    *("torch", "torch_git", "torch_config", "triton", "cuda_runtime", "cudart_loaded"),
    *("cudnn", "cublas", "cublas_loaded", "cublaslt_loaded", "blas_library"),
    *("allow_bf16_reduced_precision_reduction", "allow_fp16_reduced_precision_reduction", "allow_fp16_accumulation"),
    *("float32_matmul_precision", "matmul_allow_tf32", "cudnn_allow_tf32", "cudnn_benchmark", "cudnn_deterministic"),
    *("deterministic_algorithms",),
)
# Must be equal for cases between GPUs; every variable of NCCL with them, and all that is said of several hosts.
LINK_FACTS = (
    *("nccl", "fabric_manager_version", "nvlink_links", "nvlink_active", "nvlink_version", "nvlink_mb_per_s"),
    *("nvlink_bandwidth_mode", "fabric_state", "fabric_health", "c2c_links", "c2c_mb_per_s"),
)
_LINK_VARIABLES = ("env.NCCL_", "env.TORCH_SYMM_", "hosts.")
_LINK_FAMILIES = ("collectives", "overlap", "peers")
# Must be equal for latencies and for copies over the host link.
HOST_FACTS = (
    *("kernel", "kernel_parameters", "cpu", "sockets", "smt", "microcode", "governor", "energy_preference", "turbo"),
    *("machine", "iommu", "aspm", "transparent_hugepages", "hugepages", "numa_balancing", "cpus_allowed", "cpu_quota"),
    *("numa_nodes", "numa_side", "gpu_numa_node", "gpu_cpus_allowed", "pcie_generation_max", "pcie_lanes_max"),
    *("pcie_generation_gpu", "bar1_mib", "addressing_mode", "python", "mps"),
)

# What a declared change brings with it.
BUNDLES: Mapping[str, tuple[str, ...]] = {
    "driver": (
        *("driver", "driver_branch", "nvml", "cuda_driver", "gsp", "gsp_firmware", "kernel_module"),
        "fabric_manager_version",
    ),
    "nccl": ("nccl",),
    "torch": ("torch", "torch_git", "torch_config", "blas_library"),
    "triton": ("triton",),
    "cuda": ("cuda_runtime", "cudart_loaded", "cudnn", "cublas", "cublas_loaded", "cublaslt_loaded"),
    "host": tuple(name for name in HOST_FACTS if name not in ("numa_side", "bar1_mib", "addressing_mode")),
    "vbios": ("vbios", "inforom"),
}
# What the driver offers or reports: another value with another driver is a finding, not another GPU.
OFFERED_BY_DRIVER = (
    *("power_limit_default_w", "power_limit_least_w", "power_limit_most_w", "max_sm_clock_mhz", "max_memory_clock_mhz"),
    *("customer_boost_sm_clock_mhz", "customer_boost_memory_clock_mhz", "application_sm_clock_default_mhz"),
    *("application_memory_clock_default_mhz", "memory_bus_bits", "memory_mib", "memory_bytes", "bar1_mib"),
    *("addressing_mode", "nvlink_mb_per_s", "edpp_percent", "power_smoothing_settings", "cuda_cores"),
)
# A setting that merely follows what the driver offers as default is the driver's too.
_FOLLOWS = {
    "power_limit_w": "power_limit_default_w",
    "application_sm_clock_mhz": "application_sm_clock_default_mhz",
    "application_memory_clock_mhz": "application_memory_clock_default_mhz",
}
# Drivers reserve more or less of the memory; a tenth of it is another card.
_MEMORY = ("memory_mib", "memory_bytes")
_MEMORY_RATIO = 0.02

_MOST_SHOWN = 60
_NOT_SUPPORTED = "Not Supported"

Scope = Literal["all", "links", "host"]


@dataclass(frozen=True)
class Change:
    """A fact that differs, as text. `where` names the card where several are compared."""

    name: str
    old: str
    new: str
    where: str = ""

    @property
    def words(self) -> str:
        """`power_limit_w 700.0 -> 650.0`."""
        return f"{self.name} {self.old} -> {self.new}" + (f" (card {self.where})" if self.where else "")


@dataclass(frozen=True)
class Comparability:
    """What differs between the sides. `undeclared` holds by scope what forbids a comparison."""

    changed: tuple[Change, ...]
    undeclared: Mapping[Scope, tuple[Change, ...]]
    by_family: Mapping[str, Change]
    findings: tuple[Change, ...]
    informative: tuple[Change, ...]

    def against(self, family: str, is_on_host: bool, is_between_gpus: bool = False) -> tuple[Change, ...]:
        """What forbids comparing a case of that family."""
        found = list(self.undeclared.get("all", ()))
        if family in self.by_family:
            found.append(self.by_family[family])
        if is_between_gpus or family in _LINK_FAMILIES:
            found += self.undeclared.get("links", ())
        if is_on_host:
            found += self.undeclared.get("host", ())
        return tuple(found)


Pair = tuple[str, Sequence[SideRun], Sequence[SideRun]]


def parse_changed(text: str) -> tuple[str, ...]:
    """`nccl,torch` as names of bundles or single facts; one line for what is neither."""
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    known = {*BUNDLES, *GPU_FACTS, *SOFTWARE_FACTS, *LINK_FACTS, *HOST_FACTS}
    for name in names:
        if name not in known and not name.startswith("env."):
            raise HarnessError(
                f"--changed {name[:40]!r} is nothing that is compared. Use {', '.join(BUNDLES)}, or a fact."
            )
    if not names:
        raise HarnessError("--changed names nothing. Say what changed: driver, nccl, torch, triton, cuda, host, vbios.")
    return names


def compare_facts(pairs: Sequence[Pair], changed: Sequence[str], families: Iterable[str]) -> Comparability:
    """What differs between the sides of every pair: a card with itself, or all cards with all.

    `HarnessError` where one side alone holds runs of two environments: nobody knows then which of them is meant; and
    where what is declared changed on some cards only.
    """
    declared = {fact: name for name in changed for fact in BUNDLES.get(name, (name,))}
    names = _names(pairs)
    scopes: dict[str, Scope] = {name: scope for scope in ("host", "links", "all") for name in names[scope]}
    undeclared: dict[Scope, list[Change]] = {"all": [], "links": [], "host": []}
    changes: list[Change] = []
    findings: list[Change] = []
    informative: list[Change] = []
    cards_by_change: dict[str, list[str]] = {}
    alike = tuple(dict.fromkeys((*names["all"], *declared)))
    for label, baseline, candidate in pairs:
        _refuse_mixed(alike, "baseline", baseline)
        _refuse_mixed(alike, "candidate", candidate)
        differing = list(_differences(scopes, label if len(pairs) > 1 else "", baseline, candidate))
        differing_names = {change.name for change in differing}
        for change in differing:
            if change.name in declared:
                changes.append(change)
                cards_by_change.setdefault(declared[change.name], []).append(label)
            elif "driver" in changed and _is_offered(change, differing_names, baseline, candidate):
                findings.append(change)
            else:
                undeclared[scopes[change.name]].append(change)
        informative += _informative(scopes, label if len(pairs) > 1 else "", baseline, candidate)
    _refuse_partly_changed(cards_by_change, [label for label, _, _ in pairs])
    return Comparability(
        changed=_merged(changes),
        undeclared={scope: _merged(found) for scope, found in undeclared.items()},
        by_family=dict(_sources(pairs, families)),
        findings=_merged(findings),
        informative=_merged(informative),
    )


def _names(pairs: Sequence[Pair]) -> dict[Scope, list[str]]:
    runs = [run for _, *sides in pairs for side in sides for run in side]
    variables = sorted({n for run in runs for n, fact in run.facts.items() if _is_variable(n, fact)})
    of_links = [name for name in variables if name.startswith(_LINK_VARIABLES)]
    return {
        "all": [*GPU_FACTS, *SOFTWARE_FACTS, *(name for name in variables if name not in of_links)],
        "links": [*LINK_FACTS, *of_links],
        "host": list(HOST_FACTS),
    }


def _refuse_mixed(names: Iterable[str], side: str, runs: Sequence[SideRun]) -> None:
    mixed = [(name, values) for name in names if len(values := _values(name, runs)) > 1]
    if mixed:
        said = "; ".join(f"{name} {' / '.join(values)}" for name, values in mixed[:6])
        raise HarnessError(f"the {side} mixes runs of several environments: {said}. Name runs of one.")


def _refuse_partly_changed(cards_by_change: Mapping[str, Sequence[str]], cards: Sequence[str]) -> None:
    """Cards on which nothing changed would halve what the change did to the others."""
    for name, changed in cards_by_change.items():
        kept = [card for card in cards if card not in changed]
        if kept:
            raise HarnessError(
                f"{name} changed on card {changed[0]} and not on {kept[0]}: together they would hide a part of what it "
                "did. Name runs of cards that changed alike."
            )


def _values(name: str, runs: Sequence[SideRun]) -> list[str]:
    return sorted({_text(run.facts.get(name)) for run in runs})


def _is_variable(name: str, fact: Fact) -> bool:
    """Whether it is there in some runs only, and counts where it is."""
    return name.startswith(("env.", "hosts.")) and fact.role == "match"


def _text(fact: Fact | None) -> str:
    value = None if fact is None else fact.value
    return "unknown" if value is None else f"{value:g}" if isinstance(value, float) else str(value)[:_MOST_SHOWN]


def _differences(
    names: Iterable[str], label: str, baseline: Sequence[SideRun], candidate: Sequence[SideRun]
) -> Iterator[Change]:
    for name in names:
        old, new = _values(name, baseline), _values(name, candidate)
        if old != new or len(old) > 1 or (name in ESSENTIAL and _is_unknown(name, [*baseline, *candidate])):
            yield Change(name, " / ".join(old), " / ".join(new), label)


def _is_unknown(name: str, runs: Sequence[SideRun]) -> bool:
    """Whether nobody knows it; a card that says it has no such thing is not unknown."""
    facts = [run.facts.get(name) for run in runs]
    return any(fact is None or (fact.value is None and fact.status != _NOT_SUPPORTED) for fact in facts)


def _is_offered(
    change: Change, differing: Iterable[str], baseline: Sequence[SideRun], candidate: Sequence[SideRun]
) -> bool:
    """Whether the driver alone can have brought this difference."""
    if "unknown" in (change.old, change.new):
        return False
    if change.name in _MEMORY:
        try:
            old, new = float(change.old), float(change.new)
        except ValueError:
            return False
        return abs(new - old) <= _MEMORY_RATIO * old
    default = _FOLLOWS.get(change.name)
    if default is not None:
        follows = all(_values(change.name, side) == _values(default, side) for side in (baseline, candidate))
        return default in differing and follows
    return change.name in OFFERED_BY_DRIVER


def _informative(
    gated: Mapping[str, Scope], label: str, baseline: Sequence[SideRun], candidate: Sequence[SideRun]
) -> Iterator[Change]:
    """Every other fact that should be equal within a set, and differs."""
    facts = {name: fact for run in (*baseline, *candidate) for name, fact in run.facts.items()}
    for name in sorted(name for name, fact in facts.items() if fact.role == "match" and name not in gated):
        old, new = _values(name, baseline), _values(name, candidate)
        if old != new and name != "card":
            yield Change(name, " / ".join(old), " / ".join(new), label)


def _sources(pairs: Sequence[Pair], families: Iterable[str]) -> Iterator[tuple[str, Change]]:
    """Families whose source is another; a family without a known source is not known to be the same."""
    for family in sorted(families):
        sides = [
            sorted({run.source_hash.get(family, "") or "unknown" for run in runs})
            for runs in ([r for _, b, _ in pairs for r in b], [r for _, _, c in pairs for r in c])
        ]
        if sides[0] != sides[1] or len(sides[0]) > 1 or "unknown" in sides[0]:
            yield family, Change(f"source of {family}", " / ".join(sides[0]), " / ".join(sides[1]))


def _merged(changes: Sequence[Change]) -> tuple[Change, ...]:
    """The same difference on every card is said once."""
    cards: dict[tuple[str, str, str], list[str]] = {}
    for change in changes:
        cards.setdefault((change.name, change.old, change.new), []).append(change.where)
    return tuple(
        Change(*key, where="" if "" in where else ", ".join(dict.fromkeys(where))) for key, where in cards.items()
    )
