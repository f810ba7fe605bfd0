"""torch's attention beside ours, on the CPU."""

import pytest
import torch

from kernels import attention, attention_torch
from kernels.reference import fill_normal, sqnr_db


def random(shape, seed):
    return fill_normal(torch.empty(shape, dtype=torch.bfloat16), seed)


def test_decode_reads_the_same_cache_as_ours():
    q, keys, values = random((2, 8, 64), 1), random((2, 2, 100, 64), 2), random((2, 2, 100, 64), 3)
    results, ours = [torch.zeros(1)] * 2, torch.zeros(2, 8, 64)
    attention_torch.plan_decode(q, keys, values, results, 1)()
    attention.plan_decode(q, keys, values, ours, sm_count=1)()
    assert results[0].shape == (1,)
    assert results[1].shape == ours.shape
    assert sqnr_db(results[1], ours) > 40


@pytest.mark.parametrize("causal", [True, False])
def test_prefill_looks_at_the_same_places_as_ours(causal):
    q, keys, values = random((1, 4, 128, 64), 1), random((1, 2, 128, 64), 2), random((1, 2, 128, 64), 3)
    results, ours = [None], torch.zeros(1, 4, 128, 64)
    attention_torch.plan_prefill(q, keys, values, results, 0, causal=causal)()
    attention.plan_prefill(q, keys, values, ours, causal=causal)()
    assert sqnr_db(results[0], ours) > 40
