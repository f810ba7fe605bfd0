"""Figures that others published and measured, from published.toml: one run a GPU, each record with its source."""

import functools
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness.errors import HarnessError
from harness.importers import nccl_tests
from harness.importers.recording import Figure, Recording, build_run
from harness.model import Run, Work

LABEL = "published"

_UNITS = {"GB/s": 1e9, "TFLOP/s": 1e12}
# op: arrays that are read or written once
_ARRAYS = {"copy": 2, "read": 1, "write": 1, "scale": 2, "add": 3, "triad": 3, "dot": 2}
# What a GEMM's dtype is held against; NVFP4 and MXFP8 carry their scales along, which takes no FLOP.
_PEAKS = {"bf16": "bf16", "fp16": "fp16", "fp8_e4m3": "fp8", "mxfp8": "fp8", "nvfp4": "fp4"}
_FAMILIES = {"gemm": "gemm", "all_reduce": "collectives", "all_gather": "collectives", "reduce_scatter": "collectives"}


def gpus() -> tuple[str, ...]:
    """The NVML names of every GPU with published figures, in the file's order."""
    return tuple(dict.fromkeys(row["gpu"] for row in _data()["figure"]))


def file_name(gpu: str) -> str:
    """Where a GPU's published run lies in results/published."""
    return gpu.lower().replace(" ", "-") + ".json"


def published_run(gpu: str) -> Run:
    """The run of one GPU's published figures; the same on every call."""
    figures = tuple(_figure(row) for row in _data()["figure"] if row["gpu"] == gpu)
    if not figures:
        known = ", ".join(f"'{name}'" for name in gpus())
        raise HarnessError(f"no published figures for '{gpu}'. There are some for {known}.")
    recording = Recording(figures)
    return build_run(
        [recording], gpu=gpu, created_at=f"{_data()['collected']}T00:00:00+00:00", label=LABEL, origin="published"
    )


@functools.cache
def _data() -> dict[str, Any]:
    return tomllib.loads(Path(__file__).with_name("published.toml").read_text(encoding="utf-8"))


def _figure(row: Mapping[str, Any]) -> Figure:
    params, op = row["params"], row["op"]
    work = _work(op, params, row["counted"])
    headline = work[0].amount
    note = (f"note: {row['note']}",) if "note" in row else ()
    return Figure(
        op,
        _FAMILIES.get(op, "memory"),
        params,
        work,
        footprint_bytes=_ARRAYS.get(op, 0) * params.get("bytes", 0),
        seconds=(headline / (row["rate"] * _UNITS[row["unit"]]),),
        warnings=(f"published: {_data()['sources'][row['source']]}", *note),
    )


def _work(op: str, params: Mapping[str, Any], counted: str) -> tuple[Work, ...]:
    """The work whose rate was published comes first; what a data sheet counts instead stands behind it."""
    match op, counted:
        case "gemm", "flop":
            return (Work(2 * params["m"] * params["n"] * params["k"], "FLOP", _PEAKS[params["dtype"]], "2·m·n·k"),)
        case _, "bus":
            return _bus_work(op, params)
        case "memcpy", "one_way":
            return (Work(params["bytes"], "B", "host_link", "one way"),)
        case "copy", "one_way":
            one_way = Work(params["bytes"], "B", "memory", "one way")
            return (one_way, Work(2 * params["bytes"], "B", "memory", "read + written"))
        case _, "read_written":
            label = {"read": "read", "dot": "read", "write": "written"}.get(op, "read + written")
            return (Work(_ARRAYS[op] * params["bytes"], "B", "memory", label),)
        case _:
            raise ValueError(f"published.toml: {op} cannot be counted as {counted!r}")


def _bus_work(op: str, params: Mapping[str, Any]) -> tuple[Work, ...]:
    """In a ring, bus bytes are what each link carries; NVLS reduces in the switch, so they are not."""
    bus, algorithm = nccl_tests.works(op, params["bytes"], params["ranks"])
    match params.get("algorithm"):
        case "ring":
            return (Work(bus.amount, "B", "nvlink", "bus"), algorithm)
        case "nvls":
            return (replace(bus, no_peak="NVLS reduces in the switch: bus bytes do not cross the links"), algorithm)
        case _:
            return (bus, algorithm)
