"""Compiles every kernel and configuration for given architectures, without a GPU; prints one JSON line each.

Runs in a process of its own, because the tests beside it interpret the kernels and Triton decides that at import.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
from itertools import chain
from pathlib import Path

import torch
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.driver import driver

from kernels import (
    all_reduce,
    attention,
    cache,
    collectives_triton,
    driver_kernels,
    gemm,
    gemm_configs,
    gemm_pointers,
    gemm_promoted,
    gemm_promoted_hopper,
    gemm_skinny,
    memory,
    mx,
    peers,
    quantise,
    spin,
)
from kernels.gemm_configs import DeviceLimits
from kernels.gemm_operands import check

TRITON_TYPES = {"half": "bf16", "fp8": "fp8e4nv", "fp8_mixed": "fp8e5", "tf32": "fp32", "fp32": "fp32"}
OUT_TYPE_BYTES = {"bf16": 2, "fp32": 4}
TYPE_BYTES = {"bf16": 2, "fp8e4nv": 1, "fp8e5": 1, "fp32": 4}
# Shared memory that one program may ask for: A100, L40S, H200, B200, RTX 5090.
SHARED_BYTES = {80: 166912, 89: 101376, 90: 232448, 100: 232448, 120: 101376}


def resource_usage(cubin):
    """Registers, stack and local bytes of each thread, by the cuobjdump that ships with Triton."""
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        text = subprocess.run([tool, "-res-usage", file.name], capture_output=True, text=True, check=True).stdout
    fields = dict(part.split(":", 1) for part in text.split() if part.count(":") == 1 and part[-1].isdigit())
    return {"registers": int(fields["REG"]), "stack_bytes": int(fields["STACK"]), "local_bytes": int(fields["LOCAL"])}


def warnings_of(ptx, target):
    """What ptxas has to say about a kernel, by the one that ships with Triton."""
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/ptxas"
    command = [tool, "-v", f"--gpu-name={target}", "-", "-o", "/dev/null"]
    return subprocess.run(command, input=ptx, capture_output=True, text=True, check=True).stderr


def lost_addresses(ptx):
    """Loads whose address lies in the register that the line before clears: Triton clears what a load will fill."""
    return re.findall(r"mov\.[bu]\d+\s+(%\w+), 0x0;\s+(?:@%\w+ )?ld\.[\w.]+ \{ \1 \}, \[ \1 ", ptx)


def compile_kernel(kernel, capability, arguments, constants, *, num_warps, num_stages=3, ones=()):
    """`arguments` maps names to Triton types or tuples of them; pointers and integers are taken as multiples of 16.

    Those in `ones` are called with a 1: Triton makes a constant of it, where the kernel does not forbid it.
    """
    kept = {parameter.name for parameter in kernel.params if parameter.do_not_specialize}
    constants = constants | {name: 1 for name in ones if name not in kept}
    arguments = {name: kind for name, kind in arguments.items() if name not in constants}
    signature = arguments | dict.fromkeys(constants, "constexpr")
    signature = {name: signature[name] for name in kernel.arg_names}
    places = {(i,): kind for i, kind in enumerate(signature.values()) if isinstance(kind, str)}
    tuples = {i: kinds for i, kinds in enumerate(signature.values()) if isinstance(kinds, tuple)}
    places |= {(i, j): kind for i, kinds in tuples.items() for j, kind in enumerate(kinds)}
    divisible = [place for place, kind in places.items() if kind.startswith("*") or kind in ("i32", "i64")]
    source = ASTSource(kernel, signature, constants, {place: [["tt.divisibility", 16]] for place in divisible})
    target = GPUTarget("cuda", capability, 32)
    compiled = triton.compile(source, target=target, options={"num_warps": num_warps, "num_stages": num_stages})
    return told_of(compiled, capability)


def told_of(compiled, capability):
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
        "ld.global.ca",
        "st.relaxed.sys.global.v2.b64",
        "ld.relaxed.sys.global.v2.b64",
        "cvt.rz.f16.f32",
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


def described(dtype, rows, columns, *, is_transposed=False):
    shape = (columns, rows) if is_transposed else (rows, columns)
    return f"tensordesc<{dtype}[{shape[0]},{shape[1]}]>"


def integers(*names):
    return dict.fromkeys(names, "i32")


def scale_arguments(scaling):
    """Types of the scales, or None for each where there are none."""
    names = ("a_scale", "b_scale")
    return (dict.fromkeys(names, "*fp32"), {}) if scaling != "tensor" else ({}, dict.fromkeys(names))


def compile_gemm(config, kind, capability, out_type, *, layout="tn", scaling="tensor", ones=()):
    """A large GEMM by descriptors or pointers; `kind` fp8_mixed has e4m3 in a and e5m2 in b."""
    a_type, b_type = "fp8e4nv" if kind == "fp8_mixed" else TRITON_TYPES[kind], TRITON_TYPES[kind]
    scales, constants = scale_arguments(scaling)
    constants |= {
        "BLOCK_M": config.block_m,
        "BLOCK_N": config.block_n,
        "BLOCK_K": config.block_k,
        "GROUP_M": config.group_m,
        "PRECISION": "tf32" if kind == "tf32" else "ieee",
        "UPCAST": False,
    }
    if config.descriptors:
        kernel, stored_n = gemm.descriptor_kernel, config.block_n // (2 if config.split_epilogue else 1)
        constants |= {
            "PROGRAMS": 132,
            "A_IS_K_BY_M": layout[1] == "t",
            "B_IS_K_BY_N": layout[0] == "n",
            "ROW_SCALES": scaling == "row",
            "SPLIT_EPILOGUE": config.split_epilogue,
            "ALTERNATE_K": config.alternate_k,
            "FLATTEN": config.flatten,
            "SPECIALIZE_WARPS": config.specialize_warps,
        }
        arguments = integers("m", "n", "k") | {
            "a": described(a_type, config.block_m, config.block_k, is_transposed=layout[1] == "t"),
            "b": described(b_type, config.block_n, config.block_k, is_transposed=layout[0] == "n"),
            "out": described(out_type, config.block_m, stored_n),
        }
    else:
        kernel = gemm_pointers.pointer_kernel
        constants |= {"SCALING": scaling, "SCALE_BLOCK": 128, "PROMOTE": False}
        # A stride of one is a constant to Triton.
        contiguous = {
            "a_m_stride" if layout[1] == "t" else "a_k_stride": 1,
            "b_n_stride" if layout[0] == "n" else "b_k_stride": 1,
        }
        constants |= contiguous
        others = [name for name in kernel.arg_names if name.endswith("_stride") and name not in contiguous]
        arguments = {"a": f"*{a_type}", "b": f"*{b_type}", "out": f"*{out_type}", **integers("m", "n", "k", *others)}
    result = compile_kernel(
        *(kernel, capability, arguments | scales, constants),
        num_warps=config.warps,
        num_stages=config.stages,
        ones=ones,
    )
    promised = config.shared_bytes(TYPE_BYTES[a_type], OUT_TYPE_BYTES[out_type], (capability // 10, capability % 10))
    how = {"kind": kind, "out": out_type, "layout": layout, "scaling": scaling, "config": repr(config)}
    return result | how | {"kernel": kernel.__name__, "promised_shared_bytes": promised}


def compile_promoted(config, capability, out_type, scaling):
    scales, constants = scale_arguments(scaling)
    constants |= {
        "BLOCK_M": config.block_m,
        "HALF_N": config.half_n,
        "BLOCK_K": 128,
        "GROUP_M": config.group_m,
        "PROGRAMS": 132,
        "SCALING": scaling,
    }
    strides = [name for name in gemm_promoted.promoted_kernel.arg_names if name.endswith("_stride")]
    arguments = integers("m", "n", "k", *strides) | {
        "a": described("fp8e4nv", config.block_m, 128),
        "b": described("fp8e4nv", config.half_n, 128),
        "out": described(out_type, config.block_m, config.half_n),
    }
    result = compile_kernel(
        gemm_promoted.promoted_kernel,
        *(capability, arguments | scales, constants),
        num_warps=config.warps,
        num_stages=config.stages,
    )
    how = {"kind": "fp8", "out": out_type, "scaling": scaling, "config": repr(config)}
    promised = config.shared_bytes(OUT_TYPE_BYTES[out_type], (capability // 10, capability % 10))
    return result | how | {"kernel": "promoted_kernel", "promised_shared_bytes": promised}


class Hopper:
    """Triton's driver where there is no GPU: enough of one to compile for compute capability 9.0 as a launch does."""

    def get_current_device(self):
        return 0

    def get_current_stream(self, device):
        return 0

    def get_current_target(self):
        return GPUTarget("cuda", 90, 32)

    def get_active_torch_device(self):
        return torch.device("cpu")


def compile_promoted_hopper(config, out_type, scaling, *, types=("float8_e4m3fn", "float8_e4m3fn"), shape=(8192,) * 3):
    """Gluon's kernels are compiled by a launch that stops before the device; tensors lie on the CPU."""
    m, n, k = shape
    a, b = (torch.empty(rows, k, dtype=getattr(torch, name)) for rows, name in zip((m, n), types, strict=True))
    out = torch.empty(m, n, dtype={"bf16": torch.bfloat16, "fp32": torch.float32}[out_type])
    blocks_n, blocks_k = -(-n // 128), -(-k // 128)
    shapes = {"tensor": (), "row": ((m,), (n,)), "block": ((blocks_k, m), (blocks_n, blocks_k))}[scaling]
    scales = dict(zip(("a_scale", "b_scale"), (torch.empty(one) for one in shapes), strict=False))
    if scaling == "block":
        scales["a_scale"] = scales["a_scale"].t()
    operands = check(a, b, out, accumulation="slow", **scales)
    launch = gemm_promoted_hopper.launch_of(operands, 132, config)
    driver.set_active(Hopper())
    compiled = gemm_promoted_hopper.promoted_hopper_kernel.warmup(*launch.args, grid=(132,), **launch.keywords)
    ptx = compiled.asm["ptx"]
    how = {"kind": "fp8", "types": types, "out": out_type, "scaling": scaling, "shape": shape, "config": repr(config)}
    how |= {"waits_with_one_under_way": ptx.count("wgmma.wait_group.sync.aligned 1;")}
    how |= {"is_serialised": "serialized" in warnings_of(ptx, "sm_90a")}
    promised = config.shared_bytes(out.element_size())
    return told_of(compiled, 90) | how | {"kernel": "promoted_hopper_kernel", "promised_shared_bytes": promised}


def compile_skinny(config, most_rows, kind, capability, out_type, splits, ones=()):
    dtype = TRITON_TYPES[kind]
    constants = {
        "BLOCK_M": most_rows,
        "BLOCK_N": config.block_n,
        "BLOCK_K": config.block_k,
        "SPLITS": splits,
        "DESCRIPTORS": config.descriptors,
        "PRECISION": "tf32" if kind == "tf32" else "ieee",
        "PROMOTE": False,
        "UPCAST": False,
    }
    strides = ("a_row_stride", "b_row_stride", "out_row_stride")
    arguments = integers("m", "n", "k", "blocks_per_split", *strides)
    arguments |= {"out": f"*{out_type}", "sums": "*fp32", "arrivals": "*i32"}
    if config.descriptors:
        arguments |= {
            "a": described(dtype, most_rows, config.block_k),
            "b": described(dtype, config.block_n, config.block_k),
        }
    else:
        arguments |= {"a": f"*{dtype}", "b": f"*{dtype}"}
    result = compile_kernel(
        *(gemm_skinny.skinny_kernel, capability, arguments, constants),
        num_warps=config.warps,
        num_stages=config.stages,
        ones=ones,
    )
    promised = config.shared_bytes(most_rows, TYPE_BYTES[dtype])
    how = {"kind": kind, "out": out_type, "splits": splits, "config": repr(config)}
    return result | how | {"kernel": "skinny_kernel", "promised_shared_bytes": promised}


def compile_memory(capability, even):
    for (_, op), config in memory.CONFIGS.items():
        hints = {"LOAD_CACHE": config.load_cache, "LOAD_POLICY": config.load_policy}
        constants = {"EVEN": even, "BLOCK": config.block, "STAGES": config.stages} | hints
        if op == "read":
            kernel, arguments = memory.read_kernel, {"source": "*fp32", "partials": "*fp32"}
        else:
            kernel = memory.stream_kernel
            arguments = {"a": "*fp32", "b": "*fp32", "out": "*fp32", "factor": "fp32"}
            constants |= {"OP": op, "STAYS": config.programs_per_sm > 0}
            constants |= {"STORE_CACHE": config.store_cache, "STORE_POLICY": config.store_policy}
        result = compile_kernel(kernel, capability, arguments | {"size": "i64"}, constants, num_warps=config.warps)
        yield result | {"kernel": kernel.__name__, "op": op, "even": even}


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


def compile_cache(capability):
    words = {"source": "*i32", "sums": "*i64"}
    walks = {"chain": "*i64", "ends": "*i64"}
    on_sm = dict.fromkeys(("turn", "start", "sm", "slot", "steps"), "i32")
    walk = {"chain": "*i64", "position": "*i64", "ends": "*i64", "slot": "i32", "steps": "i32"}
    kernels = [
        (cache.sweep_kernel, words | {"blocks": "i32", "rounds": "i32"}, {"BLOCK": cache.SWEEP_BLOCK}, 4),
        *((cache.apart_kernel, words, {"STRIDE": s, "BLOCK": cache.APART_BLOCK}, 4) for s in (1, 64)),
        *((cache.gather_kernel, {"source": "*i32", "index": "*i32", "sums": "*i64"},
           {"ROWS": cache.GATHER_WORDS // w, "WORDS": w}, 4) for w in (1, 128)),
        (cache.walk_kernel, walk, {}, 1),
        (cache.walk_on_sm_kernel, walks | {"turns": "*i32"} | on_sm, {"IS_INTERPRETED": False}, 1),
        (cache.sm_kernel, {"sms": "*i32"}, {"IS_INTERPRETED": False}, 1),
    ]  # fmt: skip
    for kernel, arguments, constants, warps in kernels:
        result = compile_kernel(kernel, capability, arguments, constants, num_warps=warps, num_stages=1)
        yield result | {"kernel": f"cache.{kernel.__name__}", **constants}


def compile_decode(capability, cache_type, is_split, paged):
    """Eight query heads a key-value head, 128 wide, as the family has them."""
    out = "fp32" if is_split else "bf16"
    arguments = {"q": "*bf16", "keys": f"*{cache_type}", "values": f"*{cache_type}"}
    arguments |= {"table": "*i32" if paged else "*bf16", "out": f"*{out}", "maxima": "*fp32", "sums": "*fp32"}
    arguments |= {"scale": "fp32", "value_scale": "fp32", "length": "i32", "blocks_each": "i32", "splits": "i32"}
    multiply = tl.bfloat16 if cache_type == "bf16" else tl.float16
    constants = {"KV_HEADS": 8, "GROUP": 8, "ROWS": 16, "D": 128, "BLOCK": attention.PAGE, "IS_SPLIT": is_split}
    block_bytes = 2 * attention.PAGE * 128 * TYPE_BYTES[cache_type]
    stages = attention.decode_stages(block_bytes, SHARED_BYTES[capability], is_paged=paged)
    constants |= {"PAGED": paged, "MULTIPLY": multiply, "STAGES": stages}
    kernel = attention.decode_kernel
    result = compile_kernel(kernel, capability, arguments, constants, num_warps=attention.DECODE_WARPS)
    return result | {"kernel": kernel.__name__, "cache": cache_type, "is_split": is_split, "paged": paged}


def compile_attention(capability):
    for cache_type in ("bf16", "fp8e4nv") if capability >= 89 else ("bf16",):
        for is_split in (True, False):
            for paged in (True, False):
                yield compile_decode(capability, cache_type, is_split, paged)
    arguments = dict.fromkeys(("parts", "maxima", "sums"), "*fp32") | {"out": "*bf16", "value_scale": "fp32"}
    arguments |= {"splits": "i32"}
    constants = {"D": 128, "MOST": attention.MOST_SPLITS}
    result = compile_kernel(attention.combine_kernel, capability, arguments, constants, num_warps=4)
    yield result | {"kernel": "combine_kernel"}
    for causal in (True, False):
        config = attention.PREFILL if capability in (90, 100) else attention.PREFILL_FROM_REGISTERS
        arguments = dict.fromkeys(("q", "keys", "values", "out"), "*bf16") | {"scale": "fp32", "length": "i32"}
        constants = {"HEADS": 64, "KV_HEADS": 8, "D": 128, "BLOCK_M": config.block_m, "BLOCK_N": config.block_n}
        constants |= {"CAUSAL": causal, "MULTIPLY": tl.bfloat16, "STAGES": config.stages}
        kernel = attention.prefill_kernel
        result = compile_kernel(kernel, capability, arguments, constants, num_warps=config.warps)
        yield result | {"kernel": kernel.__name__, "causal": causal}


def compile_quantise(capability):
    """Every mode of scaling, in both layouts, to e4m3; capabilities before 8.9 have no such type."""
    if capability < 89:
        return
    of_two = dict.fromkeys(("row_amax", "column_amax"), "*fp32")
    codes = dict.fromkeys(("out", "out_t"), "*fp8e4nv")
    scales = dict.fromkeys(("scales", "scales_t", "seen"), "*fp32")
    sizes = {"rows": "i32", "columns": "i32"}
    tile = {"TILE": quantise.TILE}
    for number, mode in enumerate(quantise.MODES):
        count = {"tensor": 264, "row": quantise.SPLITS}.get(mode, 1)
        how = {"COUNT": count, "LANES": triton.next_power_of_2(count), "BOTH": True, "REMEMBERS": mode == "tensor"}
        arguments = {"source": "*bf16", **of_two, **codes, **scales, **sizes, "limit": "fp32"}
        cast_tile = quantise.CAST_TILES[mode]
        constants = {"MODE": number, **how, "TILE": cast_tile, "LEAST": quantise.LEAST_AMAX}
        constants["CUTS"] = capability == 89
        warps = quantise.CAST_WARPS[cast_tile]
        result = compile_kernel(quantise.cast_kernel, capability, arguments, constants, num_warps=warps)
        yield result | {"kernel": "quantise.cast_kernel", "mode": mode}
    arguments = {"source": "*bf16", "row_partials": "*fp32", "column_partials": "*fp32", **sizes}
    for by_row in (True, False):
        constants = {**tile, "SPLITS": quantise.SPLITS, "BY_ROW": by_row}
        result = compile_kernel(quantise.panel_amax_kernel, capability, arguments, constants, num_warps=8)
        yield result | {"kernel": "quantise.panel_amax_kernel"}
    arguments = {"source": "*bf16", "partials": "*fp32", "size": "i32"}
    constants = {"BLOCK": quantise.AMAX_BLOCK, "STAGES": 3}
    result = compile_kernel(quantise.amax_kernel, capability, arguments, constants, num_warps=8)
    yield result | {"kernel": "quantise.amax_kernel"}
    arguments = {"seen": "*fp32", "history": "*fp32", "amax": "*fp32", "used": "*fp32", "tiles": "i32"}
    constants = {"BLOCK": 1024, "HISTORY": quantise.HISTORY}
    result = compile_kernel(quantise.remember_kernel, capability, arguments, constants, num_warps=4)
    yield result | {"kernel": "quantise.remember_kernel"}


def compile_mx(capability):
    """Packing and unpacking of every format; their arithmetic is on float32, so that any capability will do."""
    for form in mx.FORMATS.values():
        shared = {"BITS": form.bits, "MANTISSA": form.mantissa_bits, "BIAS": form.bias}
        blocks = {"BLOCK": form.block, "BLOCKS": mx.VALUES // form.block}
        packed = {"codes": "*u8", "scales": "*u8", "tensor_scale": "*fp32"}
        limits = {"LARGEST": form.largest_code, "EMAX": form.largest_exponent, "LARGEST_VALUE": form.largest}
        lanes = {"COUNT": 264, "LANES": 512}
        kernels = {
            mx.quantise_kernel: ({"source": "*bf16", "amax": "*fp32", **packed}, {**limits, **lanes}),
            mx.dequantise_kernel: ({**packed, "out": "*bf16"}, {}),
        }
        for kernel, (arguments, more) in kernels.items():
            constants = {**shared, **blocks, **more, "E4M3_SCALES": form.has_e4m3_scales}
            result = compile_kernel(kernel, capability, arguments, constants, num_warps=4)
            yield result | {"kernel": f"mx.{kernel.__name__}", "format": form.name}


def compile_spin(capability):
    yield compile_kernel(spin.spin_kernel, capability, {"out": "*i64", "steps": "i32"}, {}, num_warps=1) | {
        "kernel": "spin_kernel"
    }


def compile_driver(capability):
    for kernel in driver_kernels.SIGNATURES:
        image = driver_kernels.compile_image(kernel, divmod(capability, 10))
        ptx = driver_kernels.compile_kernel(kernel, divmod(capability, 10)).asm["ptx"]
        arguments, _ = driver_kernels.SIGNATURES[kernel]
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
            block = plan.block_bytes // TYPE_BYTES[dtype]
            constants |= {"EVEN": True, "BLOCK": block, "THREADS": 32 * plan.warps}
        result = compile_kernel(kernel, capability, arguments, constants, num_warps=plan.warps)
        yield result | {"kernel": kernel.__name__, "ranks": ranks, "plan": repr(plan)}


def architecture_of(capability):
    return DeviceLimits((capability // 10, capability % 10), 0, 0).architecture


def compile_gemms(capability, out_types):
    """Each row of the tables that this architecture can take: a larger one than its shared memory is left out."""
    for (architecture, kind, accumulation), configs in gemm_configs.CONFIGS.items():
        if architecture not in (architecture_of(capability), "pointers") or (kind == "fp8" and capability < 89):
            continue
        for config in configs if accumulation == "fast" else ():
            for out_type in out_types:
                in_bytes = TYPE_BYTES[TRITON_TYPES[kind]]
                needed = config.shared_bytes(in_bytes, OUT_TYPE_BYTES[out_type], (capability // 10, 0))
                if needed <= SHARED_BYTES[capability]:
                    yield from compile_variants(config, kind, capability, out_type)


def compile_variants(config, kind, capability, out_type):
    """A row as it is, and in the other layouts, mixed types or scalings of its kind."""
    yield compile_gemm(config, kind, capability, out_type)
    if out_type == "bf16" and kind == "half":
        yield from (compile_gemm(config, kind, capability, out_type, layout=layout) for layout in ("nn", "nt"))
    if out_type == "bf16" and kind == "fp8":
        yield compile_gemm(config, "fp8_mixed", capability, out_type)
        scalings = ("row",) if config.descriptors else ("row", "block")
        yield from (compile_gemm(config, kind, capability, out_type, scaling=scaling) for scaling in scalings)


def compile_all_promoted_hopper():
    """Each row in each scaling, the two types of fp8 together, and about the smallest product that is given to it."""
    for config in gemm_promoted_hopper.CONFIGS:
        for scaling in ("tensor", "row", "block"):
            yield compile_promoted_hopper(config, "bf16", scaling)
    first, last = gemm_promoted_hopper.CONFIGS[0], gemm_promoted_hopper.CONFIGS[-1]
    yield compile_promoted_hopper(first, "bf16", "block", types=("float8_e4m3fn", "float8_e5m2"))
    yield compile_promoted_hopper(first, "bf16", "block", shape=(144, 16, 16))
    yield compile_promoted_hopper(last, "fp32", "tensor")


def compile_promoted_and_skinny(capability, out_types):
    for config in gemm_promoted.CONFIGS if architecture_of(capability) != "pointers" else ():
        for out_type in out_types:
            if config.shared_bytes(OUT_TYPE_BYTES[out_type], (capability // 10, 0)) <= SHARED_BYTES[capability]:
                for scaling in ("tensor", "row", "block"):
                    yield compile_promoted(config, capability, out_type, scaling)
    if capability == 90:
        yield from compile_all_promoted_hopper()
    kinds = {1: ("fp8",), 2: ("half",), 4: ("tf32",)}
    for (access, in_bytes), rows in gemm_skinny.CONFIGS.items():
        if (access == "pointers") != (architecture_of(capability) == "pointers") or (in_bytes == 1 and capability < 89):
            continue
        for most_rows, config in rows:
            if config.shared_bytes(most_rows, in_bytes) <= SHARED_BYTES[capability]:
                for splits in (1, 4):
                    yield compile_skinny(config, most_rows, kinds[in_bytes][0], capability, "bf16", splits)


def compile_of_ones(capability):
    """GEMMs of one row, and of one element with everything a 1 that can be."""
    integers_of_skinny = ("m", "n", "k", "blocks_per_split", "a_row_stride", "b_row_stride", "out_row_stride")
    for (access, in_bytes), rows in gemm_skinny.CONFIGS.items():
        kind = {1: "fp8", 2: "half", 4: "tf32"}[in_bytes]
        most_rows, config = rows[0]
        for splits in (1, 4):
            for ones in (("m",), integers_of_skinny) if access == "pointers" else (("m",),):
                yield compile_skinny(config, most_rows, kind, capability, "bf16", splits, ones) | {"ones": ones}
    strides = [name for name in gemm_pointers.pointer_kernel.arg_names if name.endswith("_stride")]
    for (architecture, kind, accumulation), configs in gemm_configs.CONFIGS.items():
        if architecture == "pointers" and accumulation == "fast":
            for ones in (("m",), ("m", "n", "k", *strides)):
                yield compile_gemm(configs[-1], kind, capability, "bf16", ones=ones) | {"ones": ones}


def compile_all(capability, out_types):
    yield from compile_driver(capability)
    yield from compile_peers(capability)
    yield from compile_cache(capability)
    yield from compile_attention(capability)
    yield from compile_quantise(capability)
    yield from compile_mx(capability)
    yield from compile_spin(capability)
    for ranks, dtype in ((2, "bf16"), (8, "fp32")):
        yield from compile_all_reduce(capability, ranks, dtype)
    for even in (True, False):
        yield from compile_memory(capability, even)
    yield from compile_gemms(capability, out_types)
    yield from compile_promoted_and_skinny(capability, out_types)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("capabilities", nargs="+", type=int, choices=SHARED_BYTES)
    parser.add_argument("--out", nargs="+", choices=OUT_TYPE_BYTES, default=["bf16"])
    parser.add_argument("--only-gemm", action="store_true")
    parser.add_argument("--only-attention", action="store_true")
    parser.add_argument("--only-casts", action="store_true")
    parser.add_argument("--ones", action="store_true")
    options = parser.parse_args()
    for requested in options.capabilities:
        gemms = [compile_gemms(requested, options.out), compile_promoted_and_skinny(requested, options.out)]
        lines = chain(*gemms) if options.only_gemm else compile_all(requested, options.out)
        lines = compile_attention(requested) if options.only_attention else lines
        lines = compile_quantise(requested) if options.only_casts else lines
        lines = compile_of_ones(requested) if options.ones else lines
        for line in lines:
            sys.stdout.write(json.dumps(line) + "\n")
            sys.stdout.flush()
