"""FP8 in practice: what quantisation costs, what a linear layer's step gains after paying for it, and what is lost.

`full` alone. Rates of `linear_step` count the FLOP of its three products, whatever the casts cost, so that the ratio of
two rates at one shape is the speed-up that a training step gets; the data sheet's ratio is what was promised. Errors,
overflow and loss curves are numbers of kind `quality`: rounded in float32 as fp8 rounds, the same on every device.
"""

from collections.abc import Iterator

import torch

from harness.model import Case, DeviceFacts, Metric, Work
from kernels import fp8_linear, fp8_training, gemm_torch, quantise
from kernels.fp8_linear import RECIPES
from kernels.reference import gemm_rows, shaped, sqnr_db

DTYPES = {"fp8_e4m3": torch.float8_e4m3fn, "fp8_e5m2": torch.float8_e5m2}
# 1 GiB of bfloat16: of an array read twice, L2 must serve next to nothing the second time.
MATRIX = (32768, 16384)
SMALL_MATRIX = (128, 256)
STRIP_ROWS = 2048
L2_MULTIPLES = 64
# Tokens, outputs, inputs of the layer: a square, and the up projections of an 8B and a 70B transformer of the Llama 3
# family (Dubey et al., "The Llama 3 Herd of Models", arXiv 2407.21783, table 3).
SHAPES = ((8192, 8192, 8192), (8192, 14336, 4096), (8192, 28672, 8192))
SMALL_SHAPE = (128, 128, 256)
SAMPLED_ROWS = 64
# Hopper's fast accumulation keeps 14 bits; all else leaves what rounding the result to bfloat16 does.
FAST_SQNR_DB, SLOW_SQNR_DB = 35.0, 50.0
ERROR_SHAPE = (256, 384, 512)
DATA = ("normal", "heavy", "outlier")
# How much larger than the amax that delayed scaling still uses the data have become.
GROWTHS = (1, 2, 16)
LEARNING_RATES = ("0.01", "0.03", "0.1", "0.3")
STEPS, CPU_STEPS = 300, 50
SHOWN_STEPS = (1, 25, 50, 100, 150, 200, 300)
# A loss in the first step is the model's own, however its products are rounded.
FIRST_LOSS_SQNR_DB = 30.0


def cases(profile: str, device: DeviceFacts) -> Iterator[Case]:
    """Casts, steps of a layer, their errors, overflow, and loss curves."""
    if profile == "full":
        yield from timed_cases(device)
        yield from quality_cases(device)


def timed_cases(device: DeviceFacts) -> Iterator[Case]:
    """Casts, and steps of a layer with and without them."""
    for layouts in ("one", "both"):
        for mode in ("tensor", "delayed", "row", "block", "square"):
            yield quantise_case("fp8_e4m3", mode, layouts, device)
    for mode in ("tensor", "delayed"):
        yield quantise_case("fp8_e5m2", mode, "both", device)
    for shape in SHAPES if device.kind == "cuda" else (SMALL_SHAPE,):
        yield step_case("none", "", shape, device)
        for recipe in RECIPES:
            for casts in ("timed", "before"):
                yield step_case(recipe, casts, shape, device)


def quality_cases(device: DeviceFacts) -> Iterator[Case]:
    """Numbers that are the same on every device; a CPU, which needs seconds for a curve, draws shorter and fewer."""
    for data in DATA:
        for recipe in ("current", "row", "block"):  # delayed scaling errs as current scaling does until data grow
            m, n, k = ERROR_SHAPE
            yield Case("linear_error", {"recipe": recipe, "data": data, "m": m, "n": n, "k": k}, (), "quality")
    for dtype in DTYPES:
        for clamp in ("yes", "no"):
            for growth in GROWTHS:
                yield Case("overflow", {"dtype": dtype, "clamp": clamp, "growth": growth}, (), "quality")
    rates, steps = (LEARNING_RATES, STEPS) if device.kind == "cuda" else (("0.1",), CPU_STEPS)
    for rate in rates:
        for recipe in ("none", *RECIPES):
            yield Case("training", {"recipe": recipe, "learning_rate": rate, "steps": steps}, (), "quality")


def quantise_case(dtype: str, mode: str, layouts: str, device: DeviceFacts) -> Case:
    """Bytes read and written by one quantisation of a bfloat16 matrix, as it is or also transposed."""
    rows, columns = MATRIX if device.kind == "cuda" else SMALL_MATRIX
    both = layouts == "both"
    own_mode = "tensor" if mode == "delayed" else mode
    how = {"source_bytes": 2, "both": both, "delayed": mode == "delayed"}
    moved = quantise.bytes_moved(rows, columns, own_mode, **how)
    held = rows * columns * (4 if both else 3)
    sets = device.sets(held, L2_MULTIPLES)
    params = {"dtype": dtype, "scaling": mode, "layouts": layouts, "m": rows, "n": columns, "impl": "triton"}
    return Case(
        "quantise",
        params,
        (Work(moved, "B", "memory", "read + written"),),
        memory_bytes=sets * held + 20 * rows * columns,  # the check's float32 temporaries
        footprint_bytes=sets * held,
        checked_only=device.no_triton_figures,
        not_applicable=missing("tensor", device, needs_triton=True),
    )


def step_case(recipe: str, casts: str, shape: tuple[int, int, int], device: DeviceFacts) -> Case:
    """6·m·n·k FLOP: forward, and both products of the backward pass; `casts` are part of the time or done before it."""
    m, n, k = shape
    per_set = sum(height * width for height, width in ((m, k), (n, k), (m, n))) * (4 if recipe == "none" else 6)
    sets = max(2, device.sets(per_set))
    params = {"recipe": recipe, "m": m, "n": n, "k": k} | ({"casts": casts} if casts else {})
    scaling = "none" if recipe == "none" else RECIPES[recipe].activations
    is_triton_needed = recipe != "none"
    return Case(
        "linear_step",
        params,
        (Work(6 * m * n * k, "FLOP", "bf16" if recipe == "none" else "fp8", "6·m·n·k, forward and backward"),),
        memory_bytes=sets * per_set + 2**30 + 8 * max(m * k, n * k, m * n),
        footprint_bytes=sets * per_set,
        checked_only=device.no_triton_figures if is_triton_needed else "",
        not_applicable=missing(scaling, device, needs_triton=is_triton_needed),
    )


def missing(scaling: str, device: DeviceFacts, needs_triton: bool) -> str:
    """Why this device cannot quantise or multiply so, or nothing."""
    if needs_triton and device.no_triton:
        return device.no_triton
    if scaling == "none":
        return device.lacks("bf16", 8)
    return device.lacks("fp8", 8, 9) or gemm_torch.why_not_scaled(scaling, device.compute_capability)


def bench_fp8(case, device, measure):
    bench = {
        "quantise": measure_quantise,
        "linear_step": measure_step,
        "linear_error": measure_error,
        "overflow": measure_overflow,
        "training": measure_training,
    }[case.op]
    bench(case, device, measure)


def measure_quantise(case, device, measure):
    p = case.params
    rows, columns, dtype = p["m"], p["n"], DTYPES[p["dtype"]]
    both = p["layouts"] == "both"
    is_delayed = p["scaling"] == "delayed"
    mode = "tensor" if is_delayed else p["scaling"]
    sets = case.footprint_bytes // (rows * columns * (4 if both else 3))
    sources = [torch.empty(rows, columns, dtype=torch.bfloat16, device=device.torch_device) for _ in range(sets)]
    first = fp8_linear.FIRST_AMAX if is_delayed else None
    how = {"both": both, "delayed_from": first}
    outs = [quantise.allocate(rows, columns, dtype, mode, device.torch_device, **how) for _ in range(sets)]
    launches = [quantise.plan_quantise(*pair) for pair in zip(sources, outs, strict=True)]

    def reference(i):
        out, used = outs[i], outs[i].state.get("used")
        yield from compared(sources[i], out.codes, out.scales, mode, used)
        if both:
            yield from compared(sources[i].t().contiguous(), out.codes_t, out.scales_t, mode, used)
        if is_delayed:
            yield out.state["history"][:1], sources[i].abs().max().float().reshape(1)

    measure(
        lambda i: launches[i % sets](),
        inputs=sources,
        outputs=[t for out in outs for t in (out.codes, out.codes_t) if t is not None],
        reference=reference,
        sets=sets,
        exact=True,
    )


def compared(source, codes, scales, mode, used):
    """Codes and scales beside torch's own, by strips of whole tiles: float32 copies of all would not fit."""
    rows, columns = source.shape
    amax = source.abs().max().float() if mode == "tensor" and used is None else used
    for first in range(0, rows, STRIP_ROWS):
        strip = slice(first, first + STRIP_ROWS)
        expected, expected_scales = quantise.emulate(source[strip], codes.dtype, mode, amax=amax)
        yield codes[strip].float(), expected.float()
        whole = len(scales)
        of_strip = scales if whole == 1 else scales[first * whole // rows : (first + len(expected)) * whole // rows]
        yield quantise.spread(of_strip, len(expected), columns), expected_scales


def measure_step(case, device, measure):
    p = case.params
    m, n, k, place = p["m"], p["n"], p["k"], device.torch_device
    per_set = (m * k + n * k + m * n) * (4 if p["recipe"] == "none" else 6)
    sets = case.footprint_bytes // per_set
    shapes = ((m, k), (n, k), (m, n))
    inputs, results = (
        [[torch.empty(s, dtype=torch.bfloat16, device=place) for s in order] for _ in range(sets)]
        for order in (shapes, ((m, n), (m, k), (n, k)))
    )
    pairs = list(zip(inputs, results, strict=True))

    def rows_of(height):
        return torch.linspace(0, height - 1, min(height, SAMPLED_ROWS), device=place).long()

    before, least_db = None, SLOW_SQNR_DB
    if p["recipe"] == "none":
        plans = [fp8_linear.plan_bf16_step(*given, *made) for given, made in pairs]

        def launch(i):
            plans[i % sets]()

        def expected(i):
            x, w, g = inputs[i]
            out, dx, dw = results[i]
            for a, b, made in ((x, w, out), (g, w.t(), dx), (g.t(), x.t(), dw)):
                rows = rows_of(made.shape[0])
                yield made[rows], gemm_rows(a, b, rows)
    else:
        recipe = RECIPES[p["recipe"]]
        steps = [fp8_linear.plan_step(*given, *made, recipe) for given, made in pairs]
        least_db = FAST_SQNR_DB if recipe.is_fast else SLOW_SQNR_DB
        if p["casts"] == "before":

            def before(i):
                steps[i % sets].quantise()

            def launch(i):
                steps[i % sets].multiply()
        else:

            def launch(i):
                steps[i % sets].both()

        def expected(i):
            for product in steps[i].products:
                rows = rows_of(product.out.shape[0])
                made, wanted = product.out[rows], product.expected_rows(rows)
                yield made, wanted
                if not product.is_fast:
                    is_exact = sqnr_db(made, wanted) >= SLOW_SQNR_DB
                    yield torch.tensor(is_exact), torch.tensor(True)

    def reference(i):
        yield from expected(i)
        for made in results[i]:
            yield made.isfinite().all(), torch.ones((), dtype=torch.bool, device=place)

    measure(
        launch,
        inputs=[tensor for given in inputs for tensor in given],
        outputs=[tensor for made in results for tensor in made],
        reference=reference,
        sets=sets,
        least_sqnr_db=least_db,
        before=before,
    )


def measure_error(case, device, measure):
    """SQNR of output and gradients against the product of the values as they were before quantisation."""
    p = case.params
    m, n, k = p["m"], p["n"], p["k"]
    recipe = RECIPES[p["recipe"]]
    inputs = [torch.empty(s, device=device.torch_device) for s in ((m, k), (n, k), (m, n))]
    found = {}

    def launch(_):
        found.update(fp8_linear.emulated_products(*(shaped(values, p["data"]) for values in inputs), recipe))
        found["output"].sum().item()  # by the host's clock it must be over

    def reference(_):
        x, w, _g = (shaped(values, p["data"]) for values in inputs)
        a = fp8_linear.rounded(x, fp8_linear.E4M3, recipe.activations)
        b = fp8_linear.rounded(w, fp8_linear.E4M3, recipe.weights)
        yield found["output"], a.double() @ b.double().t()

    def figures():
        exact = fp8_linear.exact_products(*(shaped(values, p["data"]) for values in inputs))
        for name, expected in exact:
            metric = "quality" if name == "output" else f"quality.{name}"
            yield Metric(metric, sqnr_db(found[name], expected), "dB", "higher", label=f"SQNR of {name}")

    measure(launch, inputs, [], reference, shots=1, figures=figures)


def measure_overflow(case, device, measure):
    """Values that outgrew the amax by which they are scaled: how many are no numbers afterwards, and the error."""
    p = case.params
    dtype, clamps = DTYPES[p["dtype"]], p["clamp"] == "yes"
    values = torch.empty(512, 512, device=device.torch_device)
    found = {}

    def launch(_):
        known = values.abs().max() / p["growth"]
        codes, scales = quantise.emulate(values, dtype, "tensor", amax=known, clamps=clamps)
        found.update(values=codes.float() * scales, known=known, scales=scales)
        found["values"].sum().item()

    def reference(_):
        # What is inside the old amax is only rounded, clamped or not.
        inside = values.abs() <= found["known"]
        kept = torch.where(inside, values, 0.0)
        yield torch.where(inside, found["values"], 0.0), kept

    def figures():
        finite = found["values"].isfinite()
        lost = 1.0 - finite.float().mean().item()
        yield Metric("quality", lost, "ratio", "lower", label="values that are no finite numbers")
        error = sqnr_db(found["values"], values) if finite.all() else None
        why = "" if error is not None else "some values are not finite"
        yield Metric("quality.sqnr", error, "dB", "higher", label="SQNR of all values", reason=why)

    measure(launch, [values], [], reference, shots=1, least_sqnr_db=15.0, figures=figures)


def measure_training(case, device, measure):
    """The loss of a small run; its start is held against float64, and a run that diverged has no figure."""
    p = case.params
    recipe = RECIPES.get(p["recipe"])
    found = {}

    def launch(_):
        found["curve"] = fp8_training.train(recipe, float(p["learning_rate"]), p["steps"], device.torch_device)

    def reference(_):
        yield found["curve"].losses[:1], fp8_training.first_loss()

    def figures():
        curve = found["curve"]
        for step in reversed([shown for shown in SHOWN_STEPS if shown <= p["steps"]]):
            value = curve.at(step - 1)
            yield Metric(
                "quality" if step == p["steps"] else f"quality.step_{step:03d}",
                value,
                "of variance",
                "lower",
                label=f"loss, mean of 10 steps up to {step}" if step > 1 else "loss of step 1",
                reason="" if value is not None else f"diverged: above {fp8_training.DIVERGED_RATIO:g} or not finite",
            )

    measure(launch, [], [], reference, shots=1, least_sqnr_db=FIRST_LOSS_SQNR_DB, figures=figures)
