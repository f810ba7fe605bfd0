"""The memory kernels in Triton's interpreter.

Not covered here: bfloat16 arithmetic, because the interpreter rounds float32 to bfloat16 towards zero.
"""

from dataclasses import replace

import pytest
import torch

from kernels import memory, memory_torch
from kernels.reference import fill_normal

BLOCK = memory.CONFIGS[memory.HOPPER, "read"].block
SIZES = [1, 511, 512, 513, 2048, 3 * 512 + 5]
NAN = float("nan")


def random(size, seed=1, dtype=torch.float32):
    return fill_normal(torch.empty(size, dtype=dtype), seed)


def poisoned(size, dtype=torch.float32):
    return torch.full((size,), NAN, dtype=dtype)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("implementation", [memory, memory_torch])
def test_each_kernel_computes_its_formula_at_every_size(implementation, size):
    a, b = random(size, 1), random(size, 2)
    plans = {
        "copy": (implementation.plan_copy, (a,), (), a),
        "scale": (implementation.plan_scale, (a,), (0.5,), 0.5 * a),
        "add": (implementation.plan_add, (a, b), (), a + b),
        "triad": (implementation.plan_triad, (a, b), (0.5,), a + 0.5 * b),
        "write": (implementation.plan_write, (), (3.25,), torch.full((size,), 3.25)),
    }
    for name, (plan, inputs, numbers, expected) in plans.items():
        out = poisoned(size)
        plan(*inputs, out, *numbers)()
        assert torch.equal(out, expected), name


@pytest.mark.parametrize("size", [*SIZES, 7 * 512, 7 * 1024 + 1])
@pytest.mark.parametrize("programs", [1, 3])
def test_programs_that_stay_touch_every_element_once(size, programs):
    a, b, factor = random(size, 1), random(size, 2), 0.25
    staying = {
        op: replace(memory.CONFIGS[memory.HOPPER, op], programs_per_sm=programs, stages=3)
        for op in ("copy", "scale", "add", "triad", "write")
    }
    for op, (plan, inputs, numbers, expected) in {
        "copy": (memory.plan_copy, (a,), (), a),
        "scale": (memory.plan_scale, (a,), (factor,), factor * a),
        "add": (memory.plan_add, (a, b), (), a + b),
        "triad": (memory.plan_triad, (a, b), (factor,), a + factor * b),
        "write": (memory.plan_write, (), (factor,), torch.full((size,), factor)),
    }.items():
        out = poisoned(size + 1)
        plan(*inputs, out[:size], *numbers, config=staying[op])()
        assert torch.equal(out[:size], expected), op
        assert out[size].isnan(), op


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("programs", [0, 2])
def test_arrays_that_begin_off_every_vector_are_copied_whole(dtype, programs):
    config = replace(memory.CONFIGS[memory.HOPPER, "copy"], programs_per_sm=programs)
    source, out = random(1400, dtype=dtype), poisoned(1400, dtype)
    memory.plan_copy(source[1:1300], out[3:1302], config)()
    assert torch.equal(out[3:1302], source[1:1300])
    assert out[:3].isnan().all()
    assert out[1302:].isnan().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_random_factors_round_as_torch_does(dtype):
    a, b, out = random(1000, 1, dtype), random(1000, 2, dtype), poisoned(1000, dtype)
    memory.triad(a, b, out, 0.3)
    expected = a.double() + 0.3 * b.double()
    tolerance = torch.finfo(dtype).eps
    torch.testing.assert_close(out.double(), expected, rtol=tolerance, atol=tolerance)


def test_copy_moves_every_bit_of_bfloat16():
    source, out = random(700, dtype=torch.bfloat16), poisoned(700, torch.bfloat16)
    memory.copy(source, out)
    assert torch.equal(out, source)


def test_copy_moves_a_misaligned_slice_and_nothing_beside_it():
    source, out = random(1001), torch.zeros(1003)
    memory.copy(source[1:], out[1:-2])
    assert torch.equal(out[1:-2], source[1:])
    assert out[0] == 0 and torch.equal(out[-2:], torch.zeros(2))


@pytest.mark.parametrize("blocks", [1, 4, 5])
@pytest.mark.parametrize("extra", [0, 7])
def test_read_writes_the_sum_of_each_programs_blocks(blocks, extra):
    source = random(blocks * BLOCK + extra)
    partials = memory.allocate_partials(source).fill_(NAN)
    memory.read(source, partials)
    expected = memory.partial_reference(source, partials)
    torch.testing.assert_close(partials.double(), expected, rtol=0, atol=1e-3)
    assert expected.sum().item() == pytest.approx(source.double().sum().item())


def test_read_counts_each_element_once():
    source = torch.ones(5 * BLOCK + 3)
    partials = torch.full((4,), NAN)
    memory.read(source, partials)
    assert partials.tolist() == [2 * BLOCK, BLOCK + 3, BLOCK, BLOCK]


def test_read_of_fewer_blocks_than_programs_leaves_zeros():
    source, partials = torch.ones(3), torch.full((4,), NAN)
    memory.read(source, partials)
    assert partials.tolist() == [3, 0, 0, 0]


def test_torch_reads_into_one_sum():
    source = random(1000)
    partials = memory_torch.allocate_partials(source)
    memory_torch.plan_read(source, partials)()
    expected = memory_torch.partial_reference(source, partials)
    torch.testing.assert_close(partials.double(), expected, rtol=0, atol=1e-3)


def test_a_plan_launches_again_on_what_its_tensors_hold_by_then():
    source, out = torch.zeros(600), poisoned(600)
    launch = memory.plan_copy(source, out)
    launch()
    source.fill_(7)
    launch()
    assert torch.equal(out, source)


@pytest.mark.parametrize("implementation", [memory, memory_torch])
@pytest.mark.parametrize(
    ("source", "out", "message"),
    [
        (torch.empty(0), torch.empty(0), r"float32 \(0,\)"),
        (torch.ones(8), torch.ones(9), r"out is torch.float32 \(9,\).*source.*\(8,\).*alike"),
        (torch.ones(8), torch.ones(8, dtype=torch.float16), "out is torch.float16"),
        (torch.ones(16)[::2], torch.ones(8), "not contiguous"),
    ],
)
def test_unusable_arrays_are_named_with_what_they_are(implementation, source, out, message):
    with pytest.raises(ValueError, match=message):
        implementation.plan_copy(source, out)


def test_the_supported_types_are_named():
    array = torch.ones(8, dtype=torch.int32)
    with pytest.raises(ValueError, match=r"source is torch.int32 \(8,\) .*supported are torch.float32, torch.float16"):
        memory.plan_copy(array, array)


@pytest.mark.parametrize("partials", [torch.empty(0), torch.empty(2, 2), torch.empty(4, dtype=torch.float64)])
def test_partials_of_another_kind_are_refused(partials):
    with pytest.raises(ValueError, match="use allocate_partials"):
        memory.plan_read(torch.ones(8), partials)


@pytest.mark.parametrize("implementation", [memory, memory_torch])
@pytest.mark.parametrize("op", ["read", "write", "scale", "add", "triad"])
@pytest.mark.parametrize(
    ("bad", "told"),
    [
        (torch.empty(0), r"float32 .?\(0,\)"),
        (torch.ones(16)[::2], "not contiguous"),
        (torch.ones(4, 4).t(), "not contiguous"),
    ],
    ids=["empty", "strided", "transposed"],
)
def test_every_operation_refuses_what_it_cannot_walk(implementation, op, bad, told):
    plan = getattr(implementation, f"plan_{op}")
    arguments = {
        "read": (bad, torch.empty(1)),
        "write": (bad, 1.0),
        "scale": (bad, bad, 1.0),
        "add": (bad, bad, bad),
        "triad": (bad, bad, bad, 1.0),
    }
    with pytest.raises(ValueError, match=told):
        plan(*arguments[op])


def test_a_matrix_is_refused_with_its_shape():
    with pytest.raises(ValueError, match=r"\(4, 4\).*1-D contiguous"):
        memory.plan_copy(torch.ones(4, 4), torch.ones(4, 4))


def test_every_operation_has_a_configuration_on_a_card_that_nobody_measured():
    assert {op for major, op in memory.CONFIGS if major == memory.HOPPER} == {
        "copy", "read", "write", "scale", "add", "triad",
    }  # fmt: skip
    assert memory.config_for("copy", torch.ones(1)) == memory.CONFIGS[memory.HOPPER, "copy"]
