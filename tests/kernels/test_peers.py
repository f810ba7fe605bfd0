"""The kernels between two GPUs in Triton's interpreter, where both are the CPU, and the order in which they launch."""

import ctypes
from itertools import pairwise

import pytest
import torch

from kernels import peers
from kernels.cuda_driver import Driver
from kernels.reference import fill_normal

NAN = float("nan")


def random(size, seed=1):
    return fill_normal(torch.empty(size), seed)


def poisoned(size):
    return torch.full((size,), NAN)


@pytest.mark.parametrize("access", ["read", "write"])
@pytest.mark.parametrize("blocks", [1, 3])
def test_copy_moves_every_bit(access, blocks):
    source, out = random(blocks * peers.COPY_BLOCK), poisoned(blocks * peers.COPY_BLOCK)
    peers.one_way(peers.plan_copy(source, out, access))(0)
    assert torch.equal(out, source)


def test_torch_moves_every_bit_too():
    source, out = random(100), poisoned(100)
    peers.one_way(peers.plan_torch_copy(source, out))(0)
    assert torch.equal(out, source)


def wrapped(value):
    return (value + 2**31) % 2**32 - 2**31


@pytest.mark.parametrize("blocks", [1, 2, 5])
def test_load_sums_every_word(blocks):
    """By lanes that wrap around, which float bits taken as words do at once."""
    source = random(blocks * peers.LOAD_BLOCK).view(torch.int32)
    sums = torch.full((2,), 7, dtype=torch.int64)
    peers.one_way(peers.plan_load(source, sums))(0)
    assert torch.equal(sums, peers.expected_sums(source, 2))
    rows = source.view(blocks, -1).tolist()
    by_hand = [sum(wrapped(sum(lane)) for lane in zip(*rows[program::2], strict=True)) for program in (0, 1)]
    assert sums.tolist() == by_hand


def test_store_repeats_its_pattern():
    pattern, out = random(peers.STORE_BLOCK), poisoned(3 * peers.STORE_BLOCK)
    peers.one_way(peers.plan_store(pattern, out))(0)
    assert torch.equal(out, pattern.repeat(3))


def test_every_walker_ends_where_the_chain_leads():
    chase = peers.Chase("cpu", "cpu", 64 * 8 * peers.CHAIN_STRIDE, walkers=3)
    for seed in (1, 2):
        fill_normal(chase.keys, seed)
        chase.ends.fill_(-1)
        chase.lay()
        for i in (2, 0, 1):
            chase.launch(i)
        assert torch.equal(chase.ends, chase.expected)
        assert len(set(chase.expected.tolist())) == 1  # 2048 steps are 32 times around 64 nodes


def test_chain_visits_every_node_once_and_keeps_128_bytes_apart(monkeypatch):
    monkeypatch.setattr(peers, "CHAIN_STEPS", 1)
    chase = peers.Chase("cpu", "cpu", 16 * 8 * peers.CHAIN_STRIDE, walkers=16)
    fill_normal(chase.keys, 3)
    chase.lay()
    for i in range(16):
        chase.launch(i)
    assert torch.equal(chase.ends, chase.expected)
    ends = sorted(chase.ends.tolist())
    assert {b - a for a, b in pairwise(ends)} == {128}


@pytest.mark.parametrize(
    ("plan", "told"),
    [
        (lambda: peers.plan_copy(random(512), poisoned(1024), "read"), "they must be alike and contiguous"),
        (lambda: peers.plan_copy(random(500), poisoned(500), "read"), "whole blocks of 512 is needed"),
        (lambda: peers.plan_copy(random(512), poisoned(512), "push"), "access is 'push'"),
        (lambda: peers.plan_load(random(8192), torch.zeros(1)), "int32 and int64 are summed exactly"),
        (lambda: peers.plan_store(random(100), poisoned(1024)), "1024 elements of out's torch.float32 are needed"),
    ],
)
def test_tensors_that_a_kernel_cannot_walk_are_refused(plan, told):
    with pytest.raises(ValueError, match=told):
        plan()


def test_engine_copies_on_the_current_stream_of_the_gpu_that_works(monkeypatch):
    calls = []

    class Library:
        def cuMemcpyAsync(self, to, source, size, stream):  # noqa: N802  # CUDA's own name
            ctypes.memmove(to.value, source.value, size.value)
            calls.append(stream.value)
            return 0

    monkeypatch.setattr(torch.cuda, "current_stream", lambda by: type("Stream", (), {"cuda_stream": 7}))
    source, out = random(10), poisoned(10)
    peers.one_way(peers.plan_engine_copy(source, out, "write", Driver(Library())))(0)
    assert torch.equal(out, source)
    assert calls == [7]


@pytest.mark.parametrize(("refused", "told"), [((), ""), (((1, 0),), "GPU 1 no access to the memory of GPU 0")])
def test_access_is_needed_both_ways(monkeypatch, refused, told):
    monkeypatch.setattr(torch.cuda, "can_device_access_peer", lambda reader, owner: (reader, owner) not in refused)
    reason = peers.why_no_access(0, 1)
    assert told in reason
    assert bool(told) == bool(reason)
