"""ResNet-50 inference: images a second and a joule over batch, and its share of the tensor cores' peak.

`full` alone. Random weights in 16 bits, channels last; cuDNN finds its algorithms by trial or by its heuristics. FLOP
are those of convolutions and the last layer: norms and activations, kernels of their own as torch runs the model, take
time and count for nothing. One image by the host's clock, launched layer by layer and from a graph, comes last.
"""

from collections.abc import Iterator
from copy import deepcopy
from functools import partial
from itertools import product

import torch

from benches.bench_gemm import LEAST_CAPABILITY
from harness.model import Case, DeviceFacts, Work
from harness.units import GIB, MIB
from kernels import resnet
from kernels.launches import captured, until_done

# Calls that the host waits for leave the card to rest: what must find it warm runs before.
LAST = True

BATCHES = (1, 8, 32, 128, 256)
SIDE = 224
SMALL_BATCH, SMALL_SIDE = 2, 64
DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}
# A hundred roundings in a row leave 57 and 40 dB at a side of 224, and 48 and 30 at 64. A block left out leaves 15.
LEAST_SQNR_DB = {"fp16": 43.0, "bf16": 25.0}
DEFAULTS = {"side": SIDE, "layout": "channels_last", "data": "normal"}
SETS = 2
COMPARED_IMAGES = 8
# The first layers' results of one image are 1.5 MiB each, of which a block holds up to six.
ACTIVATION_BYTES = 16 * MIB
SHOTS, CPU_SHOTS = 1000, 20


def cases(profile: str, device: DeviceFacts) -> Iterator[Case]:
    """Every batch in both types, by trial and by heuristics; a CPU has no cuDNN that could try."""
    if profile != "full":
        return
    on_gpu = device.kind == "cuda"
    benchmarks, batches = (("on", "off"), BATCHES) if on_gpu else (("off",), (SMALL_BATCH,))
    for dtype, benchmark, batch in product(DTYPES, benchmarks, batches):
        yield inference_case(dtype, benchmark, batch, device)
    for dtype, launch in product(DTYPES, ("eager", "graph") if on_gpu else ("eager",)):
        yield latency_case(dtype, benchmarks[0], launch, device)


def inference_case(dtype: str, benchmark: str, batch: int, device: DeviceFacts) -> Case:
    """Batches through the whole model, one after the other."""
    side = SIDE if device.kind == "cuda" else SMALL_SIDE
    return Case(
        "resnet50_inference",
        {"batch": batch, "dtype": dtype, "cudnn_benchmark": benchmark, "impl": "torch", **DEFAULTS, "side": side},
        (Work(batch * resnet.flop_per_image(side), "FLOP", dtype, "convolutions and last layer"),),
        defaults=DEFAULTS,
        memory_bytes=batch * ACTIVATION_BYTES + 4 * GIB,
        not_applicable=device.lacks(dtype, *LEAST_CAPABILITY[dtype]),
    )


def latency_case(dtype: str, benchmark: str, launch: str, device: DeviceFacts) -> Case:
    """One image, from the call until the host knows its logits to be there."""
    one = inference_case(dtype, benchmark, 1, device)
    return Case(
        "resnet50_latency",
        {**one.params, "launch": launch},
        (),
        "latency",
        defaults=DEFAULTS,
        memory_bytes=one.memory_bytes,
        not_applicable=one.not_applicable,
    )


def bench_resnet(case, device, measure):
    p, place = case.params, device.torch_device
    half = {"dtype": DTYPES[p["dtype"]], "device": place}
    model = resnet.random_model(place, p["side"]).to(**half, memory_format=torch.channels_last)
    exact = deepcopy(model).double()
    # Stored with the channels last, read as [batch, channels, height, width].
    stored = [torch.empty(p["batch"], p["side"], p["side"], 3, **half) for _ in range(SETS)]
    images = [batch.permute(0, 3, 1, 2) for batch in stored]
    logits = [torch.empty(p["batch"], resnet.CLASSES, **half) for _ in range(SETS)]
    compared = torch.linspace(0, p["batch"] - 1, min(p["batch"], COMPARED_IMAGES), device=place).long()

    def infer(i):
        logits[i] = model(images[i])

    def reference(i):
        with resnet.cudnn_benchmark(False):
            yield logits[i][compared], exact(images[i][compared].double())
        yield logits[i].isfinite().all(), torch.ones((), dtype=torch.bool, device=place)

    with resnet.cudnn_benchmark(p["cudnn_benchmark"] == "on"):
        launches, shots = [partial(infer, i) for i in range(SETS)], {}
        if case.kind == "latency":
            shots = {"shots": SHOTS if device.kind == "cuda" else CPU_SHOTS}
            if p["launch"] == "graph":
                launches = [captured(launch) for launch in launches]
            if device.kind == "cuda":
                launches = [until_done(launch) for launch in launches]
        measure(
            lambda i: launches[i % SETS](),
            inputs=stored,
            outputs=logits,
            reference=reference,
            sets=SETS,
            least_sqnr_db=LEAST_SQNR_DB[p["dtype"]],
            **shots,
        )
