"""Compiles every kernel and configuration for given architectures, without a GPU; prints one JSON line each.

Runs in a process of its own, because the tests beside it interpret the kernels and Triton decides that at import.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from kernels import all_reduce, collectives_triton, driver, gemm, memory, peers

TRITON_TYPES = {"half": "bf16", "fp8": "fp8e4nv", "tf32": "fp32", "fp32": "fp32"}
OUT_TYPE_BYTES = {"bf16": 2, "fp32": 4}
IN_TYPE_BYTES = {"bf16": 2, "fp8e4nv": 1, "fp32": 4}


def resource_usage(cubin):
    """Registers, stack and local bytes of each thread, by the cuobjdump that ships with Triton."""
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        text = subprocess.run([tool, "-res-usage", file.name], capture_output=True, text=True, check=True).stdout
    fields = dict(part.split(":", 1) for part in text.split() if part.count(":") == 1 and part[-1].isdigit())
    return {"registers": int(fields["REG"]), "stack_bytes": int(fields["STACK"]), "local_bytes": int(fields["LOCAL"])}


def lost_addresses(ptx):
    """Loads whose address lies in the register that the line before clears: Triton clears what a load will fill."""
    return re.findall(r"mov\.[bu]\d+\s+(%\w+), 0x0;\s+(?:@%\w+ )?ld\.[\w.]+ \{ \1 \}, \[ \1 ", ptx)


def compile_kernel(kernel, capability, arguments, constants, *, num_warps, num_stages=3):
    """`arguments` maps names to Triton types or tuples of them; pointers and integers are taken as multiples of 16."""
    signature = arguments | dict.fromkeys(constants, "constexpr")
    places = {(i,): kind for i, kind in enumerate(arguments.values()) if isinstance(kind, str)}
    tuples = {i: kinds for i, kinds in enumerate(arguments.values()) if isinstance(kinds, tuple)}
    places |= {(i, j): kind for i, kinds in tuples.items() for j, kind in enumerate(kinds)}
    divisible = [place for place, kind in places.items() if kind.startswith("*") or kind in ("i32", "i64")]
    source = ASTSource(kernel, signature, constants, {place: [["tt.divisibility", 16]] for place in divisible})
    target = GPUTarget("cuda", capability, 32)
    compiled = triton.compile(source, target=target, options={"num_warps": num_warps, "num_stages": num_stages})
    ptx = compiled.asm["ptx"]
    mnemonics = (
        "wgmma.mma_async",
        "mma.sync",
        "tcgen05.mma",
        "cp.async.bulk.tensor",
        "cp.async.c",
        ".v4.b32",
        ".v2.b32",
        "fma.rn",
        "ld.volatile",
        "st.relaxed.sys.global.v2.b64",
        "ld.relaxed.sys.global.v2.b64",
        "st.release.sys",
        "ld.acquire.sys",
    )
    return {
        "capability": capability,
        "shared_bytes": compiled.metadata.shared,
        "counts": {name: ptx.count(name) for name in mnemonics},
        "lost_addresses": lost_addresses(ptx),
        **resource_usage(compiled.asm["cubin"]),
    }


def compile_gemm(config, kind, accumulation, capability, out_type, *, b_is_row_major=False):
    in_type = TRITON_TYPES[kind]
    constants = {
        "BLOCK_M": config.block_m,
        "BLOCK_N": config.block_n,
        "BLOCK_K": config.block_k,
        "GROUP_M": config.group_m,
        "PRECISION": "tf32" if kind == "tf32" else "ieee",
        "PROMOTE": accumulation == "slow",
        "UPCAST": False,
    }
    if config.descriptors:
        kernel = gemm.descriptor_kernel
        constants |= {"PROGRAMS": 132, "B_IS_ROW_MAJOR": b_is_row_major, "SPLIT_EPILOGUE": config.split_epilogue}
        b_block = (config.block_k, config.block_n) if b_is_row_major else (config.block_n, config.block_k)
        blocks = {
            "a": (in_type, config.block_m, config.block_k),
            "b": (in_type, *b_block),
            "out": (out_type, config.block_m, config.block_n // (2 if config.split_epilogue else 1)),
        }
        arguments = {name: f"tensordesc<{dtype}[{x},{y}]>" for name, (dtype, x, y) in blocks.items()}
        arguments |= dict.fromkeys(("m", "n", "k"), "i32")
    else:
        kernel = gemm.pointer_kernel
        arguments = {"a": f"*{in_type}", "b": f"*{in_type}", "out": f"*{out_type}"}
        arguments |= dict.fromkeys(("m", "n", "k", "a_row_stride", "b_n_stride", "out_row_stride"), "i32")
        constants |= {"b_k_stride": 1}
        order = ["a", "b", "out", "m", "n", "k", "a_row_stride", "b_n_stride", "b_k_stride", "out_row_stride"]
        arguments = {name: arguments.get(name, "constexpr") for name in order}
    result = compile_kernel(kernel, capability, arguments, constants, num_warps=config.warps, num_stages=config.stages)
    promised = config.shared_bytes(IN_TYPE_BYTES[in_type], OUT_TYPE_BYTES[out_type])
    return result | {
        "kernel": kernel.__name__,
        "kind": kind,
        "accumulation": accumulation,
        "out": out_type,
        "config": repr(config),
        "promised_shared_bytes": promised,
    }


def compile_memory(capability, even):
    size = {"size": "i64"}
    kernels = {
        memory.copy_kernel: ({"source": "*fp32", "out": "*fp32"}, 512, 4),
        memory.write_kernel: ({"out": "*fp32", "value": "fp32"}, 1024, 4),
        memory.scale_kernel: ({"source": "*fp32", "out": "*fp32", "factor": "fp32"}, 512, 4),
        memory.add_kernel: ({"a": "*fp32", "b": "*fp32", "out": "*fp32"}, 512, 8),
        memory.triad_kernel: ({"a": "*fp32", "b": "*fp32", "out": "*fp32", "factor": "fp32"}, 512, 8),
        memory.read_kernel: ({"source": "*fp32", "partials": "*fp32"}, memory.READ_BLOCK, 4),
    }
    for kernel, (arguments, block, warps) in kernels.items():
        constants = {"EVEN": even, "BLOCK": block} | ({"STAGES": 3} if kernel is memory.read_kernel else {})
        result = compile_kernel(kernel, capability, arguments | size, constants, num_warps=warps)
        yield result | {"kernel": kernel.__name__, "even": even}


def compile_peers(capability):
    kernels = {
        peers.copy_kernel: ({"source": "*fp32", "out": "*fp32"}, {"BLOCK": peers.COPY_BLOCK}, 4),
        peers.load_kernel: (
            {"source": "*i32", "sums": "*i64", "size": "i32"},
            {"BLOCK": peers.LOAD_BLOCK, "STAGES": 3},
            4,
        ),
        peers.store_kernel: ({"pattern": "*fp32", "out": "*fp32"}, {"BLOCK": peers.STORE_BLOCK}, 4),
        peers.chase_kernel: (
            {"chain": "*i64", "starts": "*i64", "ends": "*i64", "walker": "i32", "steps": "i32"},
            {},
            1,
        ),
    }
    for kernel, (arguments, constants, warps) in kernels.items():
        result = compile_kernel(kernel, capability, arguments, constants, num_warps=warps)
        yield result | {"kernel": f"peers.{kernel.__name__}"}


def compile_driver(capability):
    for kernel in driver.SIGNATURES:
        image = driver.compile_image(kernel, divmod(capability, 10))
        ptx = driver.compile_kernel(kernel, divmod(capability, 10)).asm["ptx"]
        arguments, _ = driver.SIGNATURES[kernel]
        yield {
            "kernel": image.name,
            "arguments": len(arguments),
            "parameters": ptx.split(".entry", 1)[1].split(")", 1)[0].count(".param"),
            "counts": {name: ptx.count(name) for name in ("fma.rn", "ld.volatile", "ld.global.v4")},
            "lost_addresses": lost_addresses(ptx),
            **resource_usage(image.cubin),
        }


def compile_all_reduce(capability, ranks, dtype):
    """Every plan, each kernel as the last of so many ranks runs it."""
    plans = [plan for of_algorithm in collectives_triton.PLANS.values() for _, plan in of_algorithm]
    for plan in plans:
        constants = {"RANK": ranks - 1, "RANKS": ranks, "ALONE": False}
        signals = {"signals": ("*i32",) * ranks, "turns": "*i32"}
        peers = {"peers": (f"*{dtype}",) * ranks}
        if plan.kernel == "push":
            kernel = all_reduce.push_kernel
            places = {"places": ("*i64",) * ranks, "turns": "*i32"}
            arguments = {"given": "*i64", "result": "*i64", **places, "lines": "i32"}
            block = plan.block_bytes // all_reduce.LINE_BYTES
            constants |= {"DTYPE": dtype, "BLOCK": block, "PUSHES": True, "SUMS": True}
        else:
            kernel = all_reduce.pull_kernel if plan.kernel == "pull" else all_reduce.share_kernel
            result = {"result": f"*{dtype}"} if plan.kernel == "pull" else {}
            share = {} if plan.kernel == "pull" else {"share": "i32"}
            arguments = {**peers, **result, **signals, "size": "i32", **share}
            block = plan.block_bytes // IN_TYPE_BYTES[dtype]
            constants |= {"EVEN": True, "BLOCK": block, "THREADS": 32 * plan.warps}
        result = compile_kernel(kernel, capability, arguments, constants, num_warps=plan.warps)
        yield result | {"kernel": kernel.__name__, "ranks": ranks, "plan": repr(plan)}


def compile_all(capability, out_types):
    yield from compile_driver(capability)
    yield from compile_peers(capability)
    for ranks, dtype in ((2, "bf16"), (8, "fp32")):
        yield from compile_all_reduce(capability, ranks, dtype)
    for even in (True, False):
        yield from compile_memory(capability, even)
    configs = [(*key, config) for key, configs in gemm.CONFIGS.items() for config in configs]
    configs += [(*key, "fast", config) for key, configs in gemm.SKINNY_CONFIGS.items() for config in configs]
    for architecture, kind, accumulation, config in configs:
        if (architecture == "hopper" and capability < 90) or (kind == "fp8" and capability < 89):
            continue
        for out_type in out_types:
            yield compile_gemm(config, kind, accumulation, capability, out_type)
        if kind == "half" and config.descriptors:
            yield compile_gemm(config, kind, accumulation, capability, "bf16", b_is_row_major=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("capabilities", nargs="+", type=int)
    parser.add_argument("--out", nargs="+", choices=OUT_TYPE_BYTES, default=["bf16"])
    options = parser.parse_args()
    for requested in options.capabilities:
        for line in compile_all(requested, options.out):
            sys.stdout.write(json.dumps(line) + "\n")
            sys.stdout.flush()
