"""All-reduce kernels of our own: GPUs that store into and load from one another's memory, without multicast.

Each rank runs one launch; `places` or `peers` are all ranks' symmetric buffers as this rank sees them, by rank. Sums
are made in float32 in the order of the ranks, so that every rank gets the same bits. By what a launch waits for:

- `push_kernel`, for few bytes: a rank stores its data into every peer's memory, each 4 bytes beside a number, the
  turn of this launch, in one 8-byte store, as NCCL's LL protocol does. What carries the turn has arrived, so there is
  no barrier: one crossing of the link is all that is waited for. Twice the bytes cross.
- `pull_kernel`, one-shot for more: all meet, every rank loads all data from where they lie, all meet again.
- `share_kernel`, two-shot in place: all meet, every rank sums its share of the elements and stores the sum to all,
  all meet again. Each rank gets 2(n-1)/n of the buffer from the others, and not n-1 times all of it as in the others.

Back to back, the next launch or the program's next kernel writes what a slow peer may still be reading. What prevents
it:

- Pull and share end in a meeting: no rank's launch is over before every peer's block of the same number is done with
  reading and writing. Blocks meet one to one, block b with the peers' blocks b, and a launch is over when all are.
- Push has no such meeting and needs none. Let launch t of a rank be over: then it has every peer's data of turn t, so
  every peer has begun launch t, so (launches of a stream follow one another) every peer's launch t - 1 is over and has
  read all that was stored to it at turn t - 1. Launch t + 1 stores where t - 1 did, for the places alternate; with one
  place it would write over turn t, which a peer may not have read yet. What is given and the result are touched by
  their own rank alone.

A meeting: once a block's threads are all there, it tells each peer the turn by a store that releases all they did,
and waits by loads that acquire until each peer has told the same turn or a later one.

A launch learns its turn on the device, from a counter a block in `turns` that the launch before has left: so a CUDA
graph that repeats itself counts on. Turns are compared for equality (push) or by their wrapped difference (meetings),
so 32 bits that overflow do no harm. Blocks wait only for the blocks of the same number of other GPUs; the grid must
fit the GPU at once, so that none of these waits for a block that waits itself. Symmetric memory and `turns` start as
zeros on every rank before the first launch of any. tests/kernels/protocol_model.py plays all this in any order.
"""

import triton
import triton.language as tl

LINE_BYTES = 8
"""Data in one line of `push_kernel`; with its two turns a line takes 16 bytes."""

# Stores one line: 4 bytes of data and the turn, twice. Each half is one 64-bit store, which no reader sees in part.
_STORE_LINE = tl.constexpr("""
{
    .reg .pred inside;
    .reg .b32 low, high;
    .reg .b64 first, second;
    setp.ne.b32 inside, $4, 0;
    mov.b64 {low, high}, $2;
    mov.b64 first, {low, $3};
    mov.b64 second, {high, $3};
    @inside st.relaxed.sys.global.v2.b64 [$1], {first, second};
    mov.b32 $0, 0;
}
""")

# Loads one line until both of its halves carry the turn.
_AWAIT_LINE = tl.constexpr("""
{
    .reg .pred waits;
    .reg .b32 low, high, first_turn, second_turn;
    .reg .b64 first, second;
    mov.b64 $0, 0;
    setp.ne.b32 waits, $3, 0;
    @!waits bra TAKEN;
AGAIN:
    ld.relaxed.sys.global.v2.b64 {first, second}, [$1];
    mov.b64 {low, first_turn}, first;
    mov.b64 {high, second_turn}, second;
    setp.ne.b32 waits, first_turn, $2;
    setp.ne.or.b32 waits, second_turn, $2, waits;
    @waits bra AGAIN;
    mov.b64 $0, {low, high};
TAKEN:
}
""")

# Tells one peer the turn and waits until it has told the same or a later one.
_MEET_PEER = tl.constexpr("""
{
    .reg .pred early;
    .reg .b32 told, ahead;
    setp.ne.b32 early, $4, 0;
    @!early bra MET;
    st.release.sys.global.b32 [$1], $3;
AGAIN:
    ld.acquire.sys.global.b32 told, [$2];
    sub.s32 ahead, told, $3;
    setp.lt.s32 early, ahead, 0;
    @early bra AGAIN;
MET:
    mov.b32 $0, 0;
}
""")


# --- kernels -----------------------------------------------------------------------------------------------------
# ALONE is for the interpreter, in which one process plays all ranks one after another: nothing waits there, and a line
# that has not arrived is taken as NaNs. PUSHES and SUMS are the halves of a push, each of which it plays for all ranks
# in turn; on a GPU both are true.


@triton.jit
def push_kernel(
    given: tl.tensor,
    result: tl.tensor,
    places: tl.tuple,
    turns: tl.tensor,
    lines: tl.tensor,
    RANK: tl.constexpr,
    RANKS: tl.constexpr,
    DTYPE: tl.constexpr,
    BLOCK: tl.constexpr,
    PUSHES: tl.constexpr = True,
    SUMS: tl.constexpr = True,
    ALONE: tl.constexpr = False,
) -> None:
    """result = sum of all ranks' given, both int64 of `lines` elements that hold DTYPE; one block of lines a program.

    `places` are the ranks' symmetric int64 buffers of (2, RANKS, lines, 2): turn's parity, sender, line, its halves.
    """
    program = tl.program_id(0)
    turn = tl.load(turns + program) + 1
    line = program * BLOCK + tl.arange(0, BLOCK)
    inside = line < lines
    own = tl.load(given + line, mask=inside, other=0)
    senders = (turn & 1).to(tl.int64) * RANKS
    if PUSHES:
        for step in tl.static_range(1, RANKS):
            place = places[(RANK + step) % RANKS]
            _store_line(place + ((senders + RANK) * lines + line) * 2, own, turn, inside, ALONE)
    if SUMS:
        mine = places[RANK]
        data = own if RANK == 0 else _await_line(mine + (senders * lines + line) * 2, turn, inside, ALONE)
        a, b, c, d = _unpack(data, DTYPE)
        for sender in tl.static_range(1, RANKS):
            place = mine + ((senders + sender) * lines + line) * 2
            data = own if sender == RANK else _await_line(place, turn, inside, ALONE)
            more_a, more_b, more_c, more_d = _unpack(data, DTYPE)
            a, b, c, d = a + more_a, b + more_b, c + more_c, d + more_d
        tl.store(result + line, _pack(a, b, c, d, DTYPE), mask=inside)
        # All warps have read the turn.
        tl.debug_barrier()
        tl.store(turns + program, turn)


@triton.jit
def pull_kernel(
    peers: tl.tuple,
    result: tl.tensor,
    signals: tl.tuple,
    turns: tl.tensor,
    size: tl.tensor,
    RANK: tl.constexpr,
    RANKS: tl.constexpr,
    EVEN: tl.constexpr,
    BLOCK: tl.constexpr,
    THREADS: tl.constexpr,
    ALONE: tl.constexpr = False,
) -> None:
    """result = sum of all ranks' `peers`, of `size` elements. `signals` are the ranks' int32 of (RANKS, programs)."""
    program = tl.program_id(0)
    turn = tl.load(turns + program) + 2
    _meet(signals, turn - 1, RANK, RANKS, THREADS, ALONE)
    for start in range(program.to(tl.int64) * BLOCK, size, tl.num_programs(0) * BLOCK):
        element = start + tl.arange(0, BLOCK)
        if EVEN or start + BLOCK <= size:
            total = _sum(peers, element, element < size, True, RANKS)
            tl.store(result + element, total.to(result.dtype.element_ty))
        else:
            total = _sum(peers, element, element < size, False, RANKS)
            tl.store(result + element, total.to(result.dtype.element_ty), mask=element < size)
    _meet(signals, turn, RANK, RANKS, THREADS, ALONE)
    tl.store(turns + program, turn)


@triton.jit
def share_kernel(
    peers: tl.tuple,
    signals: tl.tuple,
    turns: tl.tensor,
    size: tl.tensor,
    share: tl.tensor,
    RANK: tl.constexpr,
    RANKS: tl.constexpr,
    EVEN: tl.constexpr,
    BLOCK: tl.constexpr,
    THREADS: tl.constexpr,
    ALONE: tl.constexpr = False,
) -> None:
    """Each of `peers` = the sum of all, of `size` elements; rank r sums those from r * share to (r + 1) * share.

    Nobody else reads or writes these elements between the meetings, so they are summed in place.
    """
    program = tl.program_id(0)
    turn = tl.load(turns + program) + 2
    _meet(signals, turn - 1, RANK, RANKS, THREADS, ALONE)
    first = RANK * share
    end = tl.minimum(first + share, size)
    for start in range(first + program.to(tl.int64) * BLOCK, end, tl.num_programs(0) * BLOCK):
        element = start + tl.arange(0, BLOCK)
        if EVEN or start + BLOCK <= end:
            _store_to_all(
                peers, element, _sum(peers, element, element < end, True, RANKS), element < end, True, RANK, RANKS
            )
        else:
            _store_to_all(
                peers, element, _sum(peers, element, element < end, False, RANKS), element < end, False, RANK, RANKS
            )
    _meet(signals, turn, RANK, RANKS, THREADS, ALONE)
    tl.store(turns + program, turn)


# --- their parts -------------------------------------------------------------------------------------------------


@triton.jit
def _meet(
    signals: tl.tuple,
    turn: tl.tensor,
    RANK: tl.constexpr,
    RANKS: tl.constexpr,
    THREADS: tl.constexpr,
    ALONE: tl.constexpr,
) -> None:
    """Returns when this block of every rank has come here at this turn; what it did before can then be seen by all.

    Thread r speaks with rank r. The block's other threads are before and after it by the two barriers.
    """
    tl.debug_barrier()
    if RANKS > 1 and not ALONE:
        program, programs = tl.program_id(0), tl.num_programs(0)
        peer = tl.arange(0, THREADS)
        telling = tl.zeros((THREADS,), dtype=tl.int64)
        for rank in tl.static_range(RANKS):
            telling = tl.where(peer == rank, signals[rank].to(tl.int64), telling)
        telling += (RANK * programs + program) * 4
        told = signals[RANK].to(tl.int64) + (peer * programs + program) * 4
        speaks = (peer < RANKS) & (peer != RANK)
        tl.inline_asm_elementwise(
            _MEET_PEER, "=r,l,l,r,r", [telling, told, turn, speaks.to(tl.int32)], tl.int32, is_pure=False, pack=1
        )
    tl.debug_barrier()


@triton.jit
def _load(pointer: tl.tensor, inside: tl.tensor, WHOLE: tl.constexpr) -> tl.tensor:
    """As float32; without a mask, which would part 16-byte accesses, where the block is whole."""
    if WHOLE:
        return tl.load(pointer).to(tl.float32)
    return tl.load(pointer, mask=inside, other=0).to(tl.float32)


@triton.jit
def _sum(peers: tl.tuple, element: tl.tensor, inside: tl.tensor, WHOLE: tl.constexpr, RANKS: tl.constexpr) -> tl.tensor:
    total = _load(peers[0] + element, inside, WHOLE)
    for rank in tl.static_range(1, RANKS):
        total += _load(peers[rank] + element, inside, WHOLE)
    return total


@triton.jit
def _store_to_all(
    peers: tl.tuple,
    element: tl.tensor,
    total: tl.tensor,
    inside: tl.tensor,
    WHOLE: tl.constexpr,
    RANK: tl.constexpr,
    RANKS: tl.constexpr,
) -> None:
    value = total.to(peers[0].dtype.element_ty)
    for step in tl.static_range(RANKS):
        if WHOLE:
            tl.store(peers[(RANK + step) % RANKS] + element, value)
        else:
            tl.store(peers[(RANK + step) % RANKS] + element, value, mask=inside)


@triton.jit
def _store_line(halves: tl.tensor, data: tl.tensor, turn: tl.tensor, inside: tl.tensor, ALONE: tl.constexpr) -> None:
    if ALONE:
        mark = turn.to(tl.int64) << 32
        tl.store(halves, (data & 0xFFFFFFFF) | mark, mask=inside)
        tl.store(halves + 1, ((data >> 32) & 0xFFFFFFFF) | mark, mask=inside)
    else:
        tl.inline_asm_elementwise(
            _STORE_LINE,
            "=r,l,l,r,r",
            [halves.to(tl.int64), data, turn, inside.to(tl.int32)],
            tl.int32,
            is_pure=False,
            pack=1,
        )


@triton.jit
def _await_line(halves: tl.tensor, turn: tl.tensor, inside: tl.tensor, ALONE: tl.constexpr) -> tl.tensor:
    if ALONE:
        first = tl.load(halves, mask=inside, other=0)
        second = tl.load(halves + 1, mask=inside, other=0)
        has_come = ((first >> 32) == turn) & ((second >> 32) == turn)
        return tl.where(has_come, (first & 0xFFFFFFFF) | (second << 32), -1)
    return tl.inline_asm_elementwise(
        _AWAIT_LINE,
        "=&l,l,r,r",
        [halves.to(tl.int64), turn, inside.to(tl.int32)],
        tl.int64,
        is_pure=False,
        pack=1,
    )


@triton.jit
def _unpack(data: tl.tensor, DTYPE: tl.constexpr) -> tl.tuple:
    """The four 16-bit numbers in 8 bytes as float32, or the two 32-bit ones and twice the second of them."""
    if DTYPE == "fp32":
        low = data.to(tl.int32).to(tl.float32, bitcast=True)
        high = (data >> 32).to(tl.int32).to(tl.float32, bitcast=True)
        return low, high, high, high
    return _number(data, DTYPE), _number(data >> 16, DTYPE), _number(data >> 32, DTYPE), _number(data >> 48, DTYPE)


@triton.jit
def _number(data: tl.tensor, DTYPE: tl.constexpr) -> tl.tensor:
    """The number in the lowest 16 bits; a bfloat16 is the upper half of a float32."""
    if DTYPE == "bf16":
        return (data.to(tl.int32) << 16).to(tl.float32, bitcast=True)
    return data.to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit
def _pack(a: tl.tensor, b: tl.tensor, c: tl.tensor, d: tl.tensor, DTYPE: tl.constexpr) -> tl.tensor:
    if DTYPE == "fp32":
        low, high = a.to(tl.int32, bitcast=True).to(tl.int64), b.to(tl.int32, bitcast=True).to(tl.int64)
        return (low & 0xFFFFFFFF) | (high << 32)
    low, high = _bits(a, DTYPE) | (_bits(b, DTYPE) << 16), _bits(c, DTYPE) | (_bits(d, DTYPE) << 16)
    return low | (high << 32)


@triton.jit
def _bits(number: tl.tensor, DTYPE: tl.constexpr) -> tl.tensor:
    """The lowest 16 bits hold the number, the others are zero."""
    if DTYPE == "bf16":
        return number.to(tl.bfloat16).to(tl.int16, bitcast=True).to(tl.int64) & 0xFFFF
    return number.to(tl.float16).to(tl.int16, bitcast=True).to(tl.int64) & 0xFFFF
