"""How the all-reduce kernels keep ranks apart, as a model: blocks of several GPUs, one step at a time, in any order.

A step is one load or store. A store to another GPU is under way for as long as the schedule likes and overtakes others,
unless it is a release, which arrives after all that its block stored before. Launches of a rank follow one another, and
before each its program writes new data where the last ones lay. The schedule favours ranks for a while, so that one
falls behind the others by whole launches where nothing holds it up.
"""

import random
from collections import defaultdict
from dataclasses import dataclass, field


class DeadlockError(Exception):
    """Nothing is under way and every block waits."""


@dataclass
class Machine:
    """All GPUs' memory, by rank and place; places start as None, counts as 0."""

    ranks: int
    blocks: int
    random: random.Random
    memory: dict = field(default_factory=lambda: defaultdict(lambda: None))
    under_way: list = field(default_factory=list)
    arrived: set = field(default_factory=set)
    stored: dict = field(default_factory=lambda: defaultdict(list))
    number: int = 0

    def load(self, rank, place):
        return self.memory[rank, place]

    def store(self, block, rank, place, value, *, release=False):
        """By a block (rank, number). To its own GPU's memory at once."""
        if block[0] == rank:
            self.memory[rank, place] = value
            return
        self.number += 1
        after = tuple(self.stored[block]) if release else ()
        self.under_way.append((self.number, after, (rank, place), value))
        self.stored[block].append(self.number)

    def deliver(self):
        """Lets one store arrive that may; whether there was one."""
        ready = [store for store in self.under_way if self.arrived.issuperset(store[1])]
        if not ready:
            return False
        store = self.random.choice(ready)
        self.under_way.remove(store)
        self.arrived.add(store[0])
        self.memory[store[2]] = store[3]
        return True

    def others(self, rank):
        return [peer for peer in range(self.ranks) if peer != rank]


# --- one block of one launch: yields after each step, or what it waits for ---------------------------------------


def push(machine, rank, block, turn, places=2):
    """Data and turn in one store to every peer; a place for each sender in turn."""
    me, parity = (rank, block), turn % places
    own = machine.load(rank, ("given", block))
    for peer in machine.others(rank):
        machine.store(me, peer, ("line", parity, rank, block), (own, turn))
        yield
    total = own
    for sender in machine.others(rank):
        place = ("line", parity, sender, block)
        yield lambda place=place: (machine.load(rank, place) or (0, None))[1] == turn
        total += machine.load(rank, place)[0]
    keep(machine, rank, block, total)


def pull(machine, rank, block, turn, *, meets_again=True):
    """Meet, load all data, meet."""
    yield from meet(machine, rank, block, 2 * turn)
    total = 0
    for peer in range(machine.ranks):
        total += machine.load(peer, ("given", block))
        yield
    keep(machine, rank, block, total)
    if meets_again:
        yield from meet(machine, rank, block, 2 * turn + 1)


def share(machine, rank, block, turn, *, meets_again=True, releases=True):
    """Meet, sum the part that is this rank's, store it to all, meet."""
    yield from meet(machine, rank, block, 2 * turn)
    total = 0
    for peer in range(machine.ranks):
        total += machine.load(peer, ("given", block))
        yield
    for peer in range(machine.ranks):
        machine.store((rank, block), peer, ("result", rank, block), total)
        yield
    if meets_again:
        yield from meet(machine, rank, block, 2 * turn + 1, releases=releases)


def meet(machine, rank, block, turn, *, releases=True):
    """Tell every peer's block of this number the turn, and wait for each to have told as much."""
    for peer in machine.others(rank):
        machine.store((rank, block), peer, ("signal", rank, block), turn, release=releases)
        yield
    for peer in machine.others(rank):
        yield lambda peer=peer: (machine.load(rank, ("signal", peer, block)) or 0) >= turn


def keep(machine, rank, block, total):
    """The whole of a block's result, as many parts as there are ranks."""
    for part in range(machine.ranks):
        machine.store((rank, block), rank, ("result", part, block), total)


# --- launches, one after another on every rank -------------------------------------------------------------------


def data_of(rank, block, turn):
    """Powers of ten apart, so that a sum tells whose data of which turn are in it."""
    return (100 * turn + block) * 1000**rank


class Rank:
    """The stream of one GPU: new data, a launch, a look at the result, and again. `resident` blocks run at once."""

    def __init__(self, machine, rank, protocol, launches, resident, *, in_order):
        self.machine, self.rank, self.protocol, self.launches = machine, rank, protocol, launches
        self.resident, self.in_order = resident, in_order
        self.turn, self.wrong = 0, 0
        self.waiting_blocks, self.running = [], {}
        self.next_launch()

    def next_launch(self):
        self.turn += 1
        if self.turn > self.launches:
            return
        for block in range(self.machine.blocks):
            own = data_of(self.rank, block, self.turn)
            self.machine.store((self.rank, block), self.rank, ("given", block), own)
        self.waiting_blocks = list(range(self.machine.blocks))
        if not self.in_order:
            self.machine.random.shuffle(self.waiting_blocks)

    def step(self):
        """One step of one block that can go on; whether there was one."""
        if self.turn > self.launches:
            return False
        while self.waiting_blocks and len(self.running) < self.resident:
            block = self.waiting_blocks.pop(0)
            self.running[block] = (self.protocol(self.machine, self.rank, block, self.turn), None)
        able = [block for block, (_, can_go_on) in self.running.items() if can_go_on is None or can_go_on()]
        if not able:
            return False
        block = self.machine.random.choice(able)
        steps, _ = self.running[block]
        try:
            self.running[block] = (steps, next(steps))
        except StopIteration:
            del self.running[block]
        if not self.running and not self.waiting_blocks:
            self.look()
            self.next_launch()
        return True

    def look(self):
        """Counts the wrong parts of the result, before the next launch can be begun."""
        ranks = range(self.machine.ranks)
        for block in range(self.machine.blocks):
            expected = sum(data_of(rank, block, self.turn) for rank in ranks)
            self.wrong += sum(self.machine.load(self.rank, ("result", part, block)) != expected for part in ranks)


def play(protocol, seed, *, ranks=2, blocks=2, launches=6, resident=None, in_order=True):
    """How many results were wrong. Raises DeadlockError."""
    chance = random.Random(seed)
    machine = Machine(ranks, blocks, chance)
    streams = [Rank(machine, rank, protocol, launches, resident or blocks, in_order=in_order) for rank in range(ranks)]
    favoured, until, steps = streams[0], 0, 0
    while any(stream.turn <= launches for stream in streams):
        steps += 1
        if steps >= until:
            favoured, until = chance.choice(streams), steps + chance.choice([1, 5, 40])
        first = [favoured.step, machine.deliver] if chance.random() < 0.8 else [machine.deliver, favoured.step]
        rest = [stream.step for stream in streams if stream is not favoured]
        if not any(act() for act in (*first, *rest)):
            raise DeadlockError(f"{steps} steps, turns {[stream.turn for stream in streams]}")
    return sum(stream.wrong for stream in streams)
