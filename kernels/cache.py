"""What caches serve: sums over a working set, chains of dependent loads, words apart and rows at random.

`plan_sweep(source, sums)` and its likes check their tensors once and return a launch without arguments. Whole numbers
are summed, so that every result is exact in whatever order. `Walk` and `WalkBySm` time one load after the other.
"""

from collections.abc import Callable
from functools import partial

import torch
import triton
import triton.language as tl

Launch = Callable[[], object]

SWEEP_BLOCK = 4096
# 32 warps an SM, each thread with eight accesses of 16 bytes on their way: more than the memory's latency takes.
SWEEP_PROGRAMS_PER_SM = 8
# A program reads at least so much, which takes a hundred microseconds and more even from L1.
SWEEP_LEAST_BYTES = 4 * 2**20
APART_BLOCK = 1024
GATHER_WORDS = 2048
WORD_BYTES = 4
# 128 B apart: no two loads of a chain share a line of any cache.
LINE_WORDS = 16
MODULUS = 2**32
# What is summed at once to check a kernel: torch makes a copy of it in 64 bits first.
SUMMED_WORDS = 2**26


# --- kernels -----------------------------------------------------------------------------------------------------


@triton.jit
def sweep_kernel(source: tl.tensor, sums: tl.tensor, blocks: tl.tensor, rounds: tl.tensor, BLOCK: tl.constexpr) -> None:
    """sums[p] = sum of so many blocks of source, modulo 2**32 a lane; program p of P begins at its P-th and goes round.

    All programs move on together, so that a block comes again after as many bytes as the whole working set has. Loads
    go to registers: a pipeline of the compiler's would bring them through cp.async, which passes L1 by.
    """
    lane = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), dtype=tl.int32)
    at = tl.program_id(0).to(tl.int64) * blocks // tl.num_programs(0)
    for _ in range(rounds):
        total += tl.load(source + at * BLOCK + lane)
        at += 1
        at = tl.where(at == blocks, 0, at)
    tl.store(sums + tl.program_id(0), tl.sum(total.to(tl.int64), axis=0))


@triton.jit
def apart_kernel(source: tl.tensor, sums: tl.tensor, STRIDE: tl.constexpr, BLOCK: tl.constexpr) -> None:
    """sums[p] = sum of the p-th block of those words of source that lie so many apart."""
    word = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(sums + tl.program_id(0), tl.sum(tl.load(source + word * STRIDE).to(tl.int64), axis=0))


@triton.jit
def gather_kernel(
    source: tl.tensor, index: tl.tensor, sums: tl.tensor, ROWS: tl.constexpr, WORDS: tl.constexpr
) -> None:
    """sums[p] = sum of the rows of source, so many words each, that the p-th block of the index names."""
    rows = tl.load(index + tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    words = tl.load(source + rows[:, None] * WORDS + tl.arange(0, WORDS)[None, :])
    tl.store(sums + tl.program_id(0), tl.sum(tl.sum(words.to(tl.int64), axis=1), axis=0))


@triton.jit
def walk(chain: tl.tensor, place: tl.tensor, steps: tl.tensor, IN_L1: tl.constexpr) -> tl.tensor:
    """Where so many loads from a place lead: every load waits for the one before.

    What is loaded is how many bytes into the chain the next place is: one addition a load. Were it the address itself,
    Triton 3.6 and 3.7 would give the load's result the register of its address and clear it first.
    """
    origin = chain.to(tl.int64)
    for _ in range(steps):
        address = (origin + place).to(tl.pointer_type(tl.int64))
        if IN_L1:  # noqa: SIM108  # a modifier must be known at compile time, and so may be no expression
            place = tl.load(address, cache_modifier=".ca")
        else:
            place = tl.load(address, volatile=True)
    return place


@triton.jit(do_not_specialize=["slot", "steps"])
def walk_kernel(chain: tl.tensor, position: tl.tensor, ends: tl.tensor, slot: tl.tensor, steps: tl.tensor) -> None:
    """Go on from where the launch before came to, and note the end in a slot of its own too."""
    place = walk(chain, tl.load(position), steps, True)
    tl.store(ends + slot, place)
    tl.store(position, place)


@triton.jit(do_not_specialize=["turn", "start", "sm", "slot", "steps"])
def walk_on_sm_kernel(
    chain: tl.tensor,
    ends: tl.tensor,
    turns: tl.tensor,
    turn: tl.tensor,
    start: tl.tensor,
    sm: tl.tensor,
    slot: tl.tensor,
    steps: tl.tensor,
    IS_INTERPRETED: tl.constexpr,
) -> None:
    """ends[slot] = where the chain leads from start, walked by the first program that finds itself on that SM.

    turns[0] is the last turn that was taken, turns[1] counts them. Arguments are not specialized: a kernel for each
    that is 1 or a multiple of 16 would be compiled within a launch that is timed.
    """
    if sm_id(IS_INTERPRETED) == sm:  # noqa: SIM102  # `and` would have the programs of every SM take the turn
        if tl.atomic_max(turns, turn) < turn:
            tl.store(ends + slot, walk(chain, start.to(tl.int64), steps, False))
            tl.atomic_add(turns + 1, 1)


@triton.jit
def sm_kernel(sms: tl.tensor, IS_INTERPRETED: tl.constexpr) -> None:
    """sms[p] = the SM on which program p runs."""
    tl.store(sms + tl.program_id(0), sm_id(IS_INTERPRETED))


@triton.jit
def sm_id(IS_INTERPRETED: tl.constexpr) -> tl.tensor:
    """The SM of this program; the interpreter has none and takes the program's number."""
    if IS_INTERPRETED:
        sm = tl.program_id(0)
    else:
        sm = tl.inline_asm_elementwise("mov.u32 $0, %smid;", "=r", [], dtype=tl.int32, is_pure=False, pack=1)
    return sm


INTERPRETED = not isinstance(sweep_kernel, triton.runtime.JITFunction)


# --- rates -------------------------------------------------------------------------------------------------------


def sweep_rounds(size_bytes: int, programs: int) -> int:
    """How many blocks a program reads in one launch: its share of the working set, and at least 4 MiB."""
    block_bytes = SWEEP_BLOCK * WORD_BYTES
    return max(SWEEP_LEAST_BYTES // block_bytes, -(-size_bytes // (block_bytes * programs)))


def plan_sweep(source: torch.Tensor, sums: torch.Tensor, rounds: int) -> Launch:
    """Read a working set by as many programs as there are sums, so many blocks each."""
    _require_words(source, SWEEP_BLOCK)
    blocks = source.numel() // SWEEP_BLOCK
    return partial(
        sweep_kernel[(sums.numel(),)], source, sums, blocks, rounds, BLOCK=SWEEP_BLOCK, num_warps=4, num_stages=1
    )


def expected_sweep(source: torch.Tensor, programs: int, rounds: int) -> torch.Tensor:
    """What `plan_sweep` must leave modulo 2**32, computed from each block's sum."""
    of_block = _sums_of_rows(source.view(-1, SWEEP_BLOCK))
    blocks = len(of_block)
    before = torch.cat([of_block.new_zeros(1), of_block.cumsum(0)])
    first = torch.arange(programs, device=source.device) * blocks // programs
    last = first + rounds % blocks
    around = torch.where(last >= blocks, before[-1] + before[last % blocks], before[last % (blocks + 1)])
    return (rounds // blocks * before[-1] + around - before[first]) % MODULUS


def plan_apart(source: torch.Tensor, sums: torch.Tensor, stride: int) -> Launch:
    """Read every word of source that lies a multiple of `stride` words from its beginning."""
    _require_words(source, APART_BLOCK * stride)
    if sums.numel() != source.numel() // (APART_BLOCK * stride):
        raise ValueError(f"{sums.numel()} sums; {source.numel() // (APART_BLOCK * stride)} blocks are read")
    return partial(apart_kernel[(sums.numel(),)], source, sums, STRIDE=stride, BLOCK=APART_BLOCK, num_warps=4)


def expected_apart(source: torch.Tensor, stride: int) -> torch.Tensor:
    """What `plan_apart` must leave."""
    return _sums_of_rows(source[::stride].view(-1, APART_BLOCK))


def plan_gather(source: torch.Tensor, index: torch.Tensor, sums: torch.Tensor, words: int) -> Launch:
    """Read the rows of `words` words that the index names."""
    rows = GATHER_WORDS // words
    _require_words(source, words)
    if rows * words != GATHER_WORDS or index.dtype != torch.int32 or sums.numel() * rows != index.numel():
        raise ValueError(
            f"rows of {words} words, {index.numel()} of them as {index.dtype}, {sums.numel()} sums:"
            f" int32, and {GATHER_WORDS} words a sum are needed"
        )
    return partial(gather_kernel[(sums.numel(),)], source, index, sums, ROWS=rows, WORDS=words, num_warps=4)


def expected_gather(source: torch.Tensor, index: torch.Tensor, words: int) -> torch.Tensor:
    """What `plan_gather` must leave, a piece of the index at a time."""
    rows = GATHER_WORDS // words
    table = source.view(-1, words)
    pieces = index.split(rows * max(1, 2**24 // GATHER_WORDS))
    return torch.cat([table[p.long()].view(-1, GATHER_WORDS).sum(dim=1, dtype=torch.int64) for p in pieces])


def lay_index(index: torch.Tensor, source: torch.Tensor, rows: int) -> None:
    """Draw the index anew, by a seed out of what source holds: other data, another index."""
    seed = int(source[:1].item()) % 2**31
    index.random_(0, rows, generator=torch.Generator(device=index.device).manual_seed(seed))


# --- latencies ---------------------------------------------------------------------------------------------------


class Chain:
    """A chain through `nodes` words of memory, `stride` words apart, in the order of random `keys`.

    `lay` it before the first launch and whenever the keys changed. Places are bytes from the beginning of `words`.
    """

    def __init__(self, device: str, nodes: int, stride: int, first_word: int = 0) -> None:
        self.keys = torch.empty(nodes, device=device)
        self.words = torch.zeros(first_word + nodes * stride, dtype=torch.int64, device=device)
        self.places = torch.zeros(nodes, dtype=torch.int64, device=device)
        self._stride, self._first_word = stride, first_word

    def lay(self) -> None:
        """Link the nodes in the order of the keys."""
        words = self._first_word + self._stride * torch.argsort(self.keys)
        self.places.copy_(8 * words)
        self.words[words] = self.places.roll(-1)


class Walk:
    """Launches that walk a chain, `steps` each, every one from where the one before it came to.

    So no place comes again before the chain has been walked once, however few steps a launch has.
    """

    def __init__(self, chain: Chain, steps: int, sets: int) -> None:
        self.chain, self.steps, self.sets = chain, steps, sets
        self.ends = torch.zeros(sets, dtype=torch.int64, device=chain.words.device)
        self._position = torch.zeros(1, dtype=torch.int64, device=chain.words.device)

    def begin(self) -> None:
        """Lay the chain and stand at its first node."""
        self.chain.lay()
        self._position.copy_(self.chain.places[:1])

    def launch(self, i: int) -> None:
        """Walk so many steps on."""
        walk_kernel[(1,)](self.chain.words, self._position, self.ends, i % self.sets, self.steps, num_warps=1)

    def expected(self) -> torch.Tensor:
        """Where the first launches after `begin` must have come to."""
        counts = self.steps * torch.arange(1, self.sets + 1, device=self.ends.device)
        return self.chain.places[counts % len(self.chain.places)]


class WalkBySm:
    """Launches that walk a chain from its first node, launch i on the i-th SM, in L2: no L1 serves them."""

    def __init__(self, chain: Chain, steps: int, sm_count: int) -> None:
        self.chain, self.steps = chain, steps
        # Several programs an SM, so that each gets one even if the scheduler doubles up somewhere.
        self._programs = sm_count if INTERPRETED else 4 * sm_count
        device = chain.words.device
        sms = torch.zeros(self._programs, dtype=torch.int32, device=device)
        sm_kernel[(self._programs,)](sms, IS_INTERPRETED=INTERPRETED, num_warps=1)
        self.sms = sorted(set(sms.tolist()))
        if len(self.sms) != sm_count:
            raise RuntimeError(f"{self._programs} programs met {len(self.sms)} SMs; the device says it has {sm_count}")
        self.ends = torch.zeros(sm_count, dtype=torch.int64, device=device)
        self._turns = torch.zeros(2, dtype=torch.int32, device=device)
        self._turn = 0
        self._start = 0

    def begin(self) -> None:
        """Lay the chain."""
        self.chain.lay()
        self._start = int(self.chain.places[0])

    def launch(self, i: int) -> None:
        """Walk on one SM. A launch of which that SM got no program walks nowhere, which `walked` tells."""
        self._turn += 1
        slot = i % len(self.sms)
        walk_on_sm_kernel[(self._programs,)](
            self.chain.words,
            self.ends,
            self._turns,
            self._turn,
            self._start,
            self.sms[slot],
            slot,
            self.steps,
            IS_INTERPRETED=INTERPRETED,
            num_warps=1,
        )

    def walked(self) -> tuple[torch.Tensor, torch.Tensor]:
        """How many launches walked, of all so far, and how many there were."""
        return self._turns[1], torch.tensor(self._turn, dtype=torch.int32, device=self._turns.device)

    def expected(self) -> torch.Tensor:
        """Where every walk must have ended."""
        return self.chain.places[self.steps % len(self.chain.places)].expand(len(self.sms))


def _sums_of_rows(matrix: torch.Tensor) -> torch.Tensor:
    """Each row's sum, some rows at a time: of all at once the copy in 64 bits would be twice the matrix."""
    pieces = matrix.split(max(1, SUMMED_WORDS // matrix.shape[1]))
    return torch.cat([piece.sum(dim=1, dtype=torch.int64) for piece in pieces])


def _require_words(source: torch.Tensor, multiple: int) -> None:
    if source.ndim != 1 or source.dtype != torch.int32 or not source.numel() or source.numel() % multiple:
        raise ValueError(
            f"source is {source.dtype} {tuple(source.shape)}; a row of int32, a multiple of {multiple} long, is needed"
        )
