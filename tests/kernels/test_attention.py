"""Decode and prefill in Triton's interpreter against attention in float64."""

import pytest
import torch

from kernels import attention
from kernels.reference import fill_normal, sqnr_db

BATCH, HEADS, KV_HEADS, D = 2, 8, 2, 64


def random(shape, dtype=torch.bfloat16, seed=1):
    return fill_normal(torch.empty(shape, dtype=dtype), seed)


def decode(length, dtype=torch.bfloat16, sm_count=1, **scales):
    q = random((BATCH, HEADS, D))
    keys, values = (random((BATCH, KV_HEADS, length, D), dtype, seed) for seed in (2, 3))
    out = torch.full((BATCH, HEADS, D), float("nan"))
    attention.plan_decode(q, keys, values, out, sm_count=sm_count, **scales)()
    return q, keys, values, out


def expected(q, keys, values, **how):
    return torch.stack([attention.reference(q[b, :, None], keys[b], values[b], **how)[:, 0] for b in range(len(q))])


@pytest.mark.parametrize("length", [1, 63, 64, 200])
def test_decode_is_right_at_every_length(length):
    q, keys, values, out = decode(length)
    assert sqnr_db(out, expected(q, keys, values)) > 100


@pytest.mark.parametrize("sm_count", [4, 16])
def test_splits_combine_to_the_whole_and_to_the_same_bits(sm_count):
    assert attention.choose_splits(BATCH * KV_HEADS, 17, 2 * sm_count) > 1
    q, keys, values, out = decode(64 * 16 + 5, sm_count=sm_count)
    assert sqnr_db(out, expected(q, keys, values)) > 100
    assert torch.equal(out, decode(64 * 16 + 5, sm_count=sm_count)[3])


def test_scratch_may_be_shared_and_is_as_large_as_was_said():
    shape = (BATCH, HEADS, KV_HEADS, D, 64 * 17)
    scratch = torch.full((attention.scratch_numbers(*shape, sm_count=4),), float("nan"))
    out = decode(64 * 17, sm_count=4, scratch=scratch)[3]
    assert torch.equal(out, decode(64 * 17, sm_count=4)[3])
    assert scratch.isfinite().all()


def test_cache_of_8_bits_is_scaled_back():
    q, keys, values, out = decode(300, torch.float8_e4m3fn, key_scale=0.5, value_scale=3.0)
    assert sqnr_db(out, expected(q, keys.double() * 0.5, values, value_scale=3.0)) > 100


def test_query_heads_share_the_key_value_head_of_their_group():
    q, keys, values, out = decode(10)
    alone = attention.reference(q[1, 4:, None], keys[1, 1:], values[1, 1:])[:, 0]
    assert sqnr_db(out[1, 4:], alone) > 100


@pytest.mark.parametrize("sm_count", [1, 4])
def test_pages_are_read_where_the_table_says(sm_count):
    pages_each = 9
    q = random((BATCH, HEADS, D))
    keys, values = (random((BATCH * pages_each, KV_HEADS, attention.PAGE, D), seed=seed) for seed in (2, 3))
    order = torch.randperm(BATCH * pages_each, generator=torch.Generator().manual_seed(4))
    table = order.to(torch.int32).view(BATCH, pages_each)
    out = torch.full((BATCH, HEADS, D), float("nan"))
    attention.plan_decode(q, keys, values, out, sm_count=sm_count, table=table)()
    for b in range(BATCH):
        k, v = (attention.gathered(cache, table, b) for cache in (keys, values))
        assert torch.equal(k[1, 64:128], keys[table[b, 1].item(), 1])
        assert sqnr_db(out[b], attention.reference(q[b, :, None], k, v)[:, 0]) > 100


@pytest.mark.parametrize(
    ("sequence_heads", "blocks", "slots", "splits"),
    [
        (512, 512, 264, 1),  # two waves of 256 beside 264: a split more saves less than it costs
        (8, 512, 264, 32),  # 32 x 8 programs fill one wave
        (8, 3, 264, 1),  # nothing to split
        (8, 16, 264, 8),  # two blocks each
        (264, 512, 264, 1),
    ],
)
def test_splits_fill_whole_waves(sequence_heads, blocks, slots, splits):
    assert attention.choose_splits(sequence_heads, blocks, slots) == splits


def test_no_split_is_left_without_a_block():
    for blocks in range(1, 200):
        splits = attention.choose_splits(3, blocks, 264)
        assert -(-blocks // -(-blocks // splits)) == splits


@pytest.mark.parametrize("config", [attention.PREFILL, attention.PREFILL_FROM_REGISTERS])
@pytest.mark.parametrize("causal", [True, False])
def test_prefill_is_right(causal, config):
    length = 2 * attention.PREFILL.block_m
    q = random((1, 4, length, D))
    keys, values = (random((1, 2, length, D), seed=seed) for seed in (2, 3))
    out = torch.full((1, 4, length, D), float("nan"))
    attention.plan_prefill(q, keys, values, out, causal=causal, config=config)()
    assert sqnr_db(out[0], attention.reference(q[0], keys[0], values[0], first=0 if causal else None)) > 100


def test_reference_is_torchs_attention():
    q, keys, values = random((4, 3, D)).double(), random((2, 7, D), seed=2).double(), random((2, 7, D), seed=3).double()
    mask = torch.arange(7) <= torch.arange(3)[:, None] + 4
    theirs = torch.nn.functional.scaled_dot_product_attention(q[None], keys[None], values[None], mask, enable_gqa=True)
    assert sqnr_db(attention.reference(q, keys, values, first=4), theirs[0]) > 200


@pytest.mark.parametrize(
    ("shapes", "table", "told"),
    [
        (((2, 8, 64), (2, 2, 9, 64), (2, 2, 8, 64)), None, "of one type are needed"),
        (((2, 7, 64), (2, 2, 9, 64), (2, 2, 9, 64)), None, "whole groups"),
        (((2, 8, 32), (2, 2, 9, 32), (2, 2, 9, 32)), None, "d 64 or 128"),
        (((2, 8, 64), (4, 2, 64, 64), (4, 2, 64, 64)), torch.zeros(2, 2), "a row of int32"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(shapes, table, told):
    q, keys, values = (random(shape) for shape in shapes)
    with pytest.raises(ValueError, match=told):
        attention.plan_decode(q, keys, values, torch.empty_like(q), sm_count=1, table=table)
