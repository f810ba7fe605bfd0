"""The ruler's check on a card that is a script: what is read, in which order, and what becomes of it."""

from types import SimpleNamespace

import pytest
import torch

from harness.model import DeviceFacts
from harness.probe import ruler as module
from harness.probe.ruler import PipeWitness, RulerCheck, watch_pipe
from harness.ruler import SPINS_S, TimerPair

RATES = {"bf16": 4096, "fp8": 8192, "tf32": 2048}
GAP_S = 1.5e-6


@pytest.fixture
def card(monkeypatch):
    """A Hopper card whose timers, spins and pipes are right, until a test says otherwise."""
    told = SimpleNamespace(
        facts=DeviceFacts("cuda", "NVIDIA Test", "cuda:0", compute_capability=(9, 0), sm_count=132),
        stamper=None,
        # A timer that is 12 ppm fast, looked at before and after ten seconds.
        pairs=[TimerPair(0, 0, 10_000), TimerPair(10_000_120_000, 10_000_000_000, 10_000)],
        readings_ns=[0, 0, 32, 32, 64],
        excess_s=GAP_S,
        ratio=1.0,
        sqnr_db=140.0,
        loops=[],
    )

    class Loop:
        """A resident loop that is told what it did."""

        def __init__(self, dtype, sm_count, capability):
            told.loops.append((dtype, sm_count, capability))

        def sqnr_db(self):
            """How right it is."""
            return told.sqnr_db

    def witness(*_):
        if isinstance(told.ratio, Exception):
            raise told.ratio
        return PipeWitness(told.ratio, 881e12, 1636.0, 0.3, 1.0, 1.0, 1636.0)

    def read_spin(_, duration_s):
        return duration_s + told.excess_s, duration_s

    monkeypatch.setattr(module, "pair_timers", lambda: told.pairs.pop(0))
    monkeypatch.setattr(module, "read_timer", lambda: told.readings_ns)
    monkeypatch.setattr(module, "ResidentLoop", Loop)
    monkeypatch.setattr(module, "watch_pipe", witness)
    monkeypatch.setattr(RulerCheck, "_read_spin", read_spin)
    return told


def checked(card):
    return RulerCheck(card, RATES).conclude()


def test_whole_ruler_of_a_right_card_is_ok(card):
    ruler = checked(card)
    assert (ruler.status, ruler.reason) == ("ok", "")
    assert [part.name for part in ruler.parts] == ["tick", "rate", "gap", *SPINS_S, "pipe_bf16", "pipe_fp8"]
    assert ruler.part("rate").value == pytest.approx(12e-6)
    assert ruler.part("gap").value == GAP_S
    assert ruler.part("spin_20us").value == pytest.approx(GAP_S)
    assert ruler.part("pipe_fp8").detail == "881.0 TFLOP/s at 1636 MHz for 0.30 s"
    assert card.loops == [("bf16", 132, (9, 0)), ("fp8", 132, (9, 0))]


def test_rate_is_between_the_first_reading_and_the_conclusion(card):
    check = RulerCheck(card, RATES)
    assert len(card.pairs) == 1
    check.conclude()
    assert card.pairs == []


def test_check_that_was_concluded_too_soon_is_unknown(card):
    card.pairs[1] = TimerPair(1_000_000_000, 1_000_000_000, 10_000)
    ruler = checked(card)
    assert (ruler.status, ruler.reason) == ("unknown", "not judged: rate")


def test_timer_that_stands_still_is_off(card):
    card.readings_ns = [5, 5, 5]
    assert checked(card).reason == "out of bounds: tick"


def test_spins_that_read_more_than_the_gap_are_off(card, monkeypatch):
    def read_spin(_, duration_s):
        return duration_s + (23e-6 if duration_s == 20e-6 else GAP_S), duration_s

    monkeypatch.setattr(RulerCheck, "_read_spin", read_spin)
    assert checked(card).reason == "out of bounds: spin_20us"


def test_empty_kernel_that_takes_no_time_is_off(card):
    card.excess_s = 0.0
    assert "gap" in checked(card).reason


@pytest.mark.parametrize(
    ("capability", "ratio", "status"),
    [((9, 0), 0.98, "off"), ((8, 9), 0.98, "unknown"), ((10, 0), 0.98, "unknown"), ((10, 0), 1.01, "off")],
)
def test_pipe_that_is_not_full_is_off_only_on_hopper_and_one_too_full_everywhere(card, capability, ratio, status):
    card.facts = DeviceFacts("cuda", "NVIDIA Test", "cuda:0", compute_capability=capability, sm_count=132)
    card.ratio = ratio
    ruler = checked(card)
    assert ruler.status == status
    assert ruler.reason.endswith("pipe_bf16, pipe_fp8")


def test_wrong_products_are_off(card):
    card.sqnr_db = 10.0
    ruler = checked(card)
    assert ruler.status == "off"
    assert ruler.part("pipe_bf16").detail == "the loop's products are wrong: 10.0 dB against float64"


def test_loop_that_does_not_run_here_is_not_judged(card):
    card.ratio = RuntimeError("out of resource:\n  shared memory")
    ruler = checked(card)
    assert (ruler.status, ruler.reason) == ("unknown", "not judged: pipe_bf16, pipe_fp8")
    assert ruler.part("pipe_bf16").detail == "the resident loop does not run here: out of resource: shared memory"


@pytest.mark.parametrize(
    ("capability", "rates", "tried"),
    [
        ((9, 0), RATES, ["bf16", "fp8"]),
        ((8, 0), RATES, ["bf16"]),
        ((7, 0), RATES, []),
        ((9, 0), {"fp8": 8192}, ["fp8"]),
        ((9, 0), {}, []),
        (None, RATES, []),
    ],
)
def test_pipes_are_those_that_the_card_has_and_whose_rate_is_known(card, capability, rates, tried):
    card.facts = DeviceFacts("cuda", "NVIDIA Test", "cuda:0", compute_capability=capability, sm_count=132)
    ruler = RulerCheck(card, rates).conclude()
    assert [dtype for dtype, *_ in card.loops] == tried
    assert ruler.status == "ok"


# --- the loop between two stamps -------------------------------------------------------------------------------------


class Event:
    """CUDA events a second apart."""

    def __init__(self, enable_timing):
        assert enable_timing

    def record(self):
        """Here."""

    def elapsed_time(self, end):
        """In ms."""
        return 1000.0


class Loop:
    """Two programs of 100 FLOP a product; its own counters saw 900 cycles."""

    programs = 2
    tile = SimpleNamespace(flop=100)

    def __init__(self):
        self.iterations = 0

    def launch(self, iterations):
        """So many products."""
        self.iterations = iterations

    def flop(self, iterations):
        """Of all programs."""
        return 2 * 100 * iterations

    def stamps(self):
        """From the first product to the last."""
        return {0: (0, 0), 1: (0, 0)}, {0: (900, 1000), 1: (900, 1000)}


class Stamper:
    """Stamps a thousand cycles and a microsecond apart on those SMs."""

    def __init__(self, *sms):
        self.sms, self.count = sms, 0

    def enqueue(self):
        """The next stamp."""
        self.count += 1
        return self.count - 1

    def read(self, number):
        """Cycles and ns of each SM."""
        return {sm: (1000 * number + 5 * sm, 1000 * number) for sm in self.sms}


@pytest.fixture
def cuda(monkeypatch):
    """Enough of a device to stand between two stamps."""
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(module, "spin", lambda _: None)


def test_ratio_is_the_flop_over_what_the_counted_cycles_allow(cuda):
    """1.6e9 cycles a second are expected, so a second at 4 FLOP a cycle is 64 million products of 100."""
    loop = Loop()
    told = watch_pipe(loop, Stamper(0, 1), 4, 1.0)
    assert loop.iterations == 64_000_000
    assert told.ratio == pytest.approx(2 * 100 * 64e6 / (2 * 4 * 1000))
    assert (told.flop_per_s, told.seconds) == (1.28e10, 1.0)
    assert (told.clock_mhz, told.own_clock_mhz, told.own_cycles) == (1000.0, 900.0, 900.0)
    assert told.own_cycles_needed == pytest.approx(100 * 64e6 / 4)


def test_however_short_a_time_is_asked_one_product_is_made(cuda):
    loop = Loop()
    watch_pipe(loop, Stamper(0, 1), 4, 0.0)
    assert loop.iterations == 1


@pytest.mark.parametrize("sms", [(), (0,)])
def test_stamps_that_do_not_cover_every_sm_are_no_witness(cuda, sms):
    with pytest.raises(RuntimeError, match="the stamps did not come from every SM"):
        watch_pipe(Loop(), Stamper(*sms), 4, 1.0)


def test_check_that_breaks_off_leaves_the_ruler_unknown(card, monkeypatch):
    """A kernel that does not compile on some GPU failed the first case of every run there."""

    def read_spin(*_):
        raise RuntimeError("PTXAS error:\n no such instruction")

    monkeypatch.setattr(RulerCheck, "_read_spin", read_spin)
    ruler = checked(card)
    assert (ruler.status, ruler.parts) == ("unknown", ())
    assert ruler.reason == "the check broke off: PTXAS error: no such instruction"
