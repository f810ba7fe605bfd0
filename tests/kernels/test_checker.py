"""Fresh data repeats nothing, poison never passes for a result, and errors are counted exactly."""

import math

import pytest
import torch

from kernels.checker import TorchChecker

CHECKER = TorchChecker()
FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2)
INTEGERS = (torch.int8, torch.uint8, torch.int32, torch.int64)


def buffers(count, dtype=torch.float32, elements=64):
    return [torch.zeros(elements, dtype=dtype) for _ in range(count)]


def filled(count, seed):
    made = buffers(count)
    CHECKER.fill(made, seed)
    return made


def test_same_seed_gives_the_same_data():
    assert all(torch.equal(a, b) for a, b in zip(filled(3, 7), filled(3, 7), strict=True))


@pytest.mark.parametrize("dtype", (*FLOATS, *INTEGERS), ids=str)
def test_a_flipped_bit_is_found_with_its_index_and_both_patterns(dtype):
    (buffer,) = buffers(1, dtype, 64)
    buffer = buffer.view(4, 16)
    kept = CHECKER.copy(buffer)
    assert CHECKER.differences(kept, buffer) == (0, [])
    words = buffer.view(-1).view(torch.uint8)
    width = buffer.element_size()
    words[(2 * 16 + 5) * width] = 0x10
    words[(3 * 16 + 15) * width + width - 1] = 0x80  # the sign, which no pattern shows as a minus
    top = 0x80 << 8 * (width - 1)
    assert CHECKER.differences(kept, buffer) == (2, [((2, 5), 0, 0x10), ((3, 15), 0, top)])


def test_only_the_first_few_elements_that_differ_are_listed():
    (buffer,) = buffers(1)
    kept = CHECKER.copy(buffer)
    CHECKER.poison([buffer])
    count, first = CHECKER.differences(kept, buffer)
    assert count == 64
    assert [at for at, _, _ in first] == [(0,), (1,), (2,)]


def test_buffers_of_one_fill_differ():
    first, second = filled(2, 7)
    assert not torch.equal(first, second)


def test_fresh_fill_from_the_next_seed_repeats_no_buffer_of_the_first():
    """Buffer 1 of one seed was buffer 0 of the next, so stale results passed on all sets but one."""
    drawn = {tuple(buffer.tolist()) for seed in (7, 8) for buffer in filled(50, seed)}
    assert len(drawn) == 100


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_fill_is_finite_and_neither_zero_nor_constant(dtype):
    made = buffers(1, dtype)
    CHECKER.fill(made, 7)
    values = made[0].double()
    assert bool(values.isfinite().all())
    assert values.std() > 0.5


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_poison_of_a_float_is_nan_everywhere(dtype):
    made = buffers(2, dtype, elements=5)
    CHECKER.poison(made)
    assert all(bool(buffer.double().isnan().all()) for buffer in made)


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_poison_of_an_integer_is_the_smallest(dtype):
    made = buffers(1, dtype, elements=5)
    CHECKER.poison(made)
    assert made[0].tolist() == [torch.iinfo(dtype).min] * 5


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_poison_never_passes_a_check(dtype):
    made = buffers(1, dtype, elements=5)
    expected = made[0].clone()
    CHECKER.poison(made)
    assert CHECKER.error(made[0], expected, exact=True) == 5
    assert CHECKER.error(made[0], expected, exact=False) == -math.inf


def test_poison_that_both_sides_hold_never_passes():
    made = buffers(1, elements=5)
    CHECKER.poison(made)
    assert CHECKER.error(made[0], made[0], exact=True) == 5
    assert CHECKER.error(made[0], made[0], exact=False) == -math.inf


def test_exact_error_is_the_number_of_elements_that_differ():
    actual, expected = torch.arange(10.0), torch.arange(10.0)
    assert CHECKER.error(actual, expected, exact=True) == 0
    actual[3], actual[7] = -1.0, math.nan
    assert CHECKER.error(actual, expected, exact=True) == 2


def test_exact_error_looks_at_every_chunk(monkeypatch):
    monkeypatch.setattr("kernels.checker._CHUNK", 4)
    actual, expected = torch.zeros(10), torch.zeros(10)
    actual[0] = actual[9] = 1.0
    assert CHECKER.error(actual, expected, exact=True) == 2


def test_exact_error_takes_any_shape_and_stride():
    matrix = torch.arange(6.0).view(2, 3)
    assert CHECKER.error(matrix.t(), matrix.t().contiguous(), exact=True) == 0


def test_results_of_another_length_are_no_comparison():
    with pytest.raises((ValueError, RuntimeError)):
        CHECKER.error(torch.zeros(5), torch.zeros(4), exact=True)


def test_single_element_is_not_stretched_over_the_reference():
    """A result of one element passed for any number of equal ones."""
    with pytest.raises(ValueError, match="actual is"):
        CHECKER.error(torch.zeros(1), torch.zeros(5), exact=True)


def test_error_in_decibel_is_signal_over_noise():
    expected = torch.full((4,), 10.0)
    assert CHECKER.error(expected + 1, expected, exact=False) == pytest.approx(20.0)
    assert CHECKER.error(expected, expected, exact=False) == math.inf


@pytest.mark.parametrize("dtype", (*FLOATS, *INTEGERS), ids=str)
def test_fingerprint_is_equal_for_equal_bits(dtype):
    ones = torch.ones(64).to(dtype)
    assert CHECKER.fingerprint(ones) == CHECKER.fingerprint(ones.clone())
    assert CHECKER.fingerprint(ones) != CHECKER.fingerprint(torch.zeros(64, dtype=dtype))


def test_fingerprint_sees_one_flipped_bit():
    words = torch.zeros(64, dtype=torch.int32)
    before = CHECKER.fingerprint(words)
    words[5] ^= 1
    assert CHECKER.fingerprint(words) != before


def test_fingerprint_tells_minus_zero_from_zero():
    assert CHECKER.fingerprint(torch.tensor([0.0])) != CHECKER.fingerprint(torch.tensor([-0.0]))


def test_fingerprint_sees_two_values_change_places():
    assert CHECKER.fingerprint(torch.tensor([1.0, 2.0])) != CHECKER.fingerprint(torch.tensor([2.0, 1.0]))


def test_fingerprint_sees_two_chunks_change_places(monkeypatch):
    monkeypatch.setattr("kernels.checker._CHUNK", 2)
    assert CHECKER.fingerprint(torch.tensor([1.0, 2.0, 3.0, 4.0])) != CHECKER.fingerprint(
        torch.tensor([3.0, 4.0, 1.0, 2.0])
    )


@pytest.mark.parametrize("elements", [1, 2, 3, 5, 7])
def test_fingerprint_sees_the_last_bytes_too(elements):
    """The bytes after the last whole word were left out, so a wrong last element repeated faithfully."""
    buffer = torch.zeros(elements, dtype=torch.uint8)
    seen = {CHECKER.fingerprint(buffer)}
    for place in range(elements):
        changed = buffer.clone()
        changed[place] = 1
        seen.add(CHECKER.fingerprint(changed))
    assert len(seen) == elements + 1


def test_fingerprint_of_nan_is_that_of_its_bits():
    made = buffers(1)
    CHECKER.poison(made)
    assert CHECKER.fingerprint(made[0]) == CHECKER.fingerprint(made[0].clone())
