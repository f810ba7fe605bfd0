"""Launch and compile: what Triton adds to a launch, and what a kernel costs before it first runs.

Latencies by the host's clock, `full` alone. What the driver itself takes for a launch, eager and replayed from a graph
node by node, is in the family of the driver (`launch`, `graph_replay`).
"""

from collections.abc import Iterator

import torch

from harness.model import Case, DeviceFacts
from kernels import spin

# Behind all that loads the card, as the driver's own calls are.
LAST = True

MANY, CACHED, FEW = 2000, 50, 6


def cases(profile: str, device: DeviceFacts) -> Iterator[Case]:
    """A launch until it is queued and until it has run; two kernels compiled anew and found in the cache."""
    if profile != "full":
        return
    missing = "" if device.triton == "compiled" else "nothing is compiled or launched without a GPU and Triton"
    for until in ("queued", "done"):
        yield Case("triton_launch", {"until": until}, (), "latency", not_applicable=missing)
    for kernel in ("spin", "cast"):
        needs = "" if missing or kernel == "spin" or device.at_least(8, 9) else f"{device.name} has no fp8 to cast to"
        for cache in ("none", "disk"):
            params = {"kernel": kernel, "cache": cache}
            yield Case("triton_compile", params, (), "latency", not_applicable=missing or needs)


def bench_compile(case, device, measure):
    if case.op == "triton_launch":
        measure_launch(case, device, measure)
    else:
        measure_compile(case, device, measure)


def measure_launch(case, device, measure):
    """A program that stores its own number; the stream is empty before each call."""
    out = torch.empty(1, dtype=torch.int64, device=device.torch_device)
    launch = spin.plan_spin(out, 1)

    def launch_and_wait(_):
        launch()
        torch.cuda.synchronize()

    measure(
        (lambda _: launch()) if case.params["until"] == "queued" else launch_and_wait,
        outputs=[out],
        reference=lambda _: [(out, spin.expected(out, 1))],
        exact=True,
        shots=MANY,
        before=lambda _: torch.cuda.synchronize(),
    )


def measure_compile(case, device, measure):
    from kernels.compiling import ELF, Compiler

    image = torch.empty(len(ELF), dtype=torch.int64)
    is_anew = case.params["cache"] == "none"
    with Compiler(case.params["kernel"], device.compute_capability) as compiler:

        def compile_it(_):
            image.copy_(torch.tensor(list(compiler.compile()[: len(ELF)])))

        def before(_):
            if is_anew:
                compiler.forget()
            elif not compiler.holds():
                compiler.compile()

        measure(
            compile_it,
            outputs=[image],
            reference=lambda _: [(image, torch.tensor(list(ELF)))],
            exact=True,
            shots=FEW if is_anew else CACHED,
            before=before,
        )
