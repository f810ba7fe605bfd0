"""The software as facts: versions as installed and as loaded, numerics, and which commit of the suite this is."""

import ctypes
import hashlib
import importlib.metadata
import platform
import subprocess
from collections.abc import Mapping
from pathlib import Path

import torch

from harness import __version__
from harness.model import Fact
from harness.probe.facts import attempt, optional

# Variables that change what is measured. Values are stored only for these names; none holds a path, a host or a UUID.
VARIABLES = (
    "CUBLAS_WORKSPACE_CONFIG",
    "CUDA_DEVICE_MAX_CONNECTIONS",
    "CUDA_DEVICE_ORDER",
    "CUDA_LAUNCH_BLOCKING",
    "CUDA_MODULE_LOADING",
    "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
    "MKL_NUM_THREADS",
    "NCCL_ALGO",
    "NCCL_BUFFSIZE",
    "NCCL_CROSS_NIC",
    "NCCL_CUMEM_ENABLE",
    "NCCL_IB_DISABLE",
    "NCCL_MAX_CTAS",
    "NCCL_MAX_NCHANNELS",
    "NCCL_MIN_CTAS",
    "NCCL_MIN_NCHANNELS",
    "NCCL_NET_GDR_LEVEL",
    "NCCL_NTHREADS",
    "NCCL_NVLS_ENABLE",
    "NCCL_P2P_DISABLE",
    "NCCL_P2P_LEVEL",
    "NCCL_PROTO",
    "NCCL_SHM_DISABLE",
    "NVIDIA_TF32_OVERRIDE",
    "OMP_NUM_THREADS",
    "OMP_PROC_BIND",
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
    "TORCH_BLAS_PREFER_CUBLASLT",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST",
    "TRITON_INTERPRET",
)

_CHECKOUT = Path(__file__).resolve().parents[2]
_PEAK_TABLE = _CHECKOUT / "harness" / "specs.toml"
# What a figure depends on: somebody who edits the README meanwhile measures with the same suite.
_MEASURING = ("harness", "kernels", "benches", "conftest.py")
_GIT_TIMEOUT_S = 2
_HASH_DIGITS = 12
_MAPS = Path("/proc/self/maps")
# libraryPropertyType of library_types.h: major, minor and patch level.
_PROPERTIES = (0, 1, 2)


def software_facts(environment: Mapping[str, str]) -> dict[str, Fact]:
    """Every fact of the software in this process."""
    return {
        "suite": Fact(__version__),
        **checkout_facts(_CHECKOUT),
        "peak_table": Fact(hashlib.sha256(_PEAK_TABLE.read_bytes()).hexdigest()[:_HASH_DIGITS], role="informative"),
        **_versions(),
        **_loaded(),
        **_numerics(),
        **{f"env.{name}": Fact(environment[name]) for name in VARIABLES if name in environment},
    }


def checkout_facts(folder: Path) -> dict[str, Fact]:
    """The commit of the suite, and whether a tracked file that measures differs from it.

    Informative: what must match is the source of each family, which the run file holds as a hash.
    """
    if not (folder / ".git").exists():
        missing = Fact(None, "not a checkout", "informative")
        return {"suite_commit": missing, "suite_modified": missing}
    # One call for both, and without a lock: somebody may be working there.
    command = ["git", "--no-optional-locks", "status", "--porcelain=v2", "--branch", "--untracked-files=no", "--"]
    try:
        told = subprocess.run(
            [*command, *_MEASURING], cwd=folder, capture_output=True, text=True, check=True, timeout=_GIT_TIMEOUT_S
        )
    except (OSError, subprocess.SubprocessError) as error:
        # Only the kind of error: git's own words would name a path.
        missing = Fact(None, f"git does not tell ({type(error).__name__})", "informative")
        return {"suite_commit": missing, "suite_modified": missing}
    lines = told.stdout.splitlines()
    oid = next((line.rpartition(" ")[2] for line in lines if line.startswith("# branch.oid ")), "")
    commit = optional(oid if oid.isalnum() else None, "there is no commit yet", "informative")
    is_modified = any(not line.startswith("#") for line in lines)
    return {"suite_commit": commit, "suite_modified": Fact(is_modified, role="informative")}


def _version(distribution: str) -> Fact:
    try:
        return Fact(importlib.metadata.version(distribution))
    except importlib.metadata.PackageNotFoundError:
        return Fact(None, "not installed")


def _versions() -> dict[str, Fact]:
    return {
        "python": Fact(platform.python_version()),
        "torch": Fact(torch.__version__),
        "torch_git": attempt(lambda: torch.version.git_version),
        "torch_config": attempt(
            lambda: hashlib.sha256(torch.__config__.show().encode()).hexdigest()[:_HASH_DIGITS]  # a page of flags
        ),
        "triton": _version("triton"),
        "numpy": _version("numpy"),
        "pandas": Fact(_version("pandas").value, role="informative"),
        "pytest_benchmark": Fact(_version("pytest-benchmark").value, role="informative"),
        "nvidia_ml_py": Fact(_version("nvidia-ml-py").value, role="informative"),
        "cuda_runtime": attempt(lambda: torch.version.cuda),
        "cudnn": attempt(torch.backends.cudnn.version),
        "cublas": _version("nvidia-cublas"),
        "nccl": attempt(_nccl_version),
    }


def _nccl_version() -> str | None:
    if torch.version.cuda is None:
        return None
    return ".".join(str(part) for part in torch.cuda.nccl.version())


def _loaded() -> dict[str, Fact]:
    """Versions that the libraries in this process tell themselves: a search path may have brought in others."""
    return {
        "cublas_loaded": attempt(lambda: _property(_library("cublas"), "cublasGetProperty")),
        "cublaslt_loaded": attempt(lambda: _property(_library("cublasLt"), "cublasLtGetProperty")),
        "cudart_loaded": attempt(lambda: _runtime_version(_library("cudart"))),
    }


def _library(name: str) -> ctypes.CDLL:
    """The library as this process has mapped it; opening it again loads nothing."""
    mapped = (line.split()[-1] for line in _MAPS.read_text().splitlines())
    found = next((path for path in mapped if Path(path).name.startswith(f"lib{name}.so")), None)
    if found is None:
        raise OSError(f"lib{name} is not loaded")
    try:
        return ctypes.CDLL(found)
    except OSError as error:
        # The loader's own words name a path.
        raise OSError(f"lib{name} cannot be opened again") from error


def _property(library: ctypes.CDLL, call: str) -> str | None:
    parts = []
    for which in _PROPERTIES:
        value = ctypes.c_int()
        if getattr(library, call)(which, ctypes.byref(value)) != 0:
            return None
        parts.append(value.value)
    return ".".join(map(str, parts))


def _runtime_version(library: ctypes.CDLL) -> str | None:
    value = ctypes.c_int()
    if library.cudaRuntimeGetVersion(ctypes.byref(value)) != 0:
        return None
    return cuda_version(value.value)


def cuda_version(number: int) -> str:
    """CUDA's own number as people write it: 12080 -> '12.8'."""
    return f"{number // 1000}.{number % 1000 // 10}"


def _numerics() -> dict[str, Fact]:
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    return {
        "allow_bf16_reduced_precision_reduction": Fact(str(matmul.allow_bf16_reduced_precision_reduction)),
        "allow_fp16_reduced_precision_reduction": Fact(str(matmul.allow_fp16_reduced_precision_reduction)),
        "allow_fp16_accumulation": attempt(lambda: bool(matmul.allow_fp16_accumulation)),
        "float32_matmul_precision": attempt(torch.get_float32_matmul_precision),
        "matmul_allow_tf32": attempt(lambda: bool(matmul.allow_tf32)),
        "cudnn_allow_tf32": attempt(lambda: bool(cudnn.allow_tf32)),
        "cudnn_benchmark": attempt(lambda: bool(cudnn.benchmark)),
        "cudnn_deterministic": attempt(lambda: bool(cudnn.deterministic)),
        "deterministic_algorithms": attempt(torch.are_deterministic_algorithms_enabled),
        "blas_library": attempt(lambda: str(torch.backends.cuda.preferred_blas_library()).rpartition(".")[2]),
    }
