"""`ofpeak peak` from the probe's answer to what is printed and the exit code."""

import json

import pytest

from harness import asking
from harness.cli.app import exit_status
from harness.model import to_plain
from harness.peak import Found, PeakReport, Shape, Standing, Step
from harness.report.peak import peak_lines

BEST, SECOND = Shape(2048, 4096, 18432), Shape(8192, 8448, 8192)


def report(**more):
    """A search as an H200 might answer it; the figures are made up."""
    found = {
        "finalists": (Standing(BEST, 8.4e14, 8.38e14, 8.42e14, 12), Standing(SECOND, 8.3e14, 8.29e14, 8.31e14, 12)),
        "lead_ratio": 0.012,
        "lead_low": 0.010,
        "is_distinct": True,
        "steps": (Step(0.1, "scout", SECOND, 8.1e14), Step(20.5, "screen", BEST, 8.5e14)),
        "tried": 900,
        "declared": 577,
        "seconds": 48.2,
    }
    found |= {name: more.pop(name) for name in list(more) if name in Found.__dataclass_fields__}
    told = {
        "gpu": "NVIDIA H200",
        "dtype": "bf16",
        "impl": "torch",
        "protocol": "mamf",
        "accumulation": "",
        "out": "bf16",
        "conditions": {"driver": "580.1", "torch": "2.11.0"},
        "total_s": 57.9,
        "promised_flop_per_s": 9.894e14,
    }
    return PeakReport(**(told | more), found=Found(**found))


def test_it_is_printed_with_the_best_first_and_how_sure_that_is():
    assert peak_lines(report(sm_clock_mhz=1500.4, power_w=680.2)) == [
        "NVIDIA H200: driver 580.1, torch 2.11.0",
        "bf16, result bf16, torch; as mamf-finder 2: 50 + 100 launches a turn, each timed alone after 256 MiB were "
        "zeroed, mean",
        "",
        "best  2048x4096x18432        840.0 TFLOP/s  (838.0 to 842.0, 12 turns)  84.9 % of the data sheet",
        "2     8192x8448x8192         830.0 TFLOP/s  (829.0 to 831.0, 12 turns)",
        "      in its last turn: 1500 MHz true SM clock, 680 W",
        "sure?  ahead of the second by 1.20 %, by 1.00 % at least (95 %, turn by turn)",
        "",
        "trace: brief readings, each higher than all before it (the turns above decide, not these)",
        "     0.1 s  scout  8192x8448x8192         810.0 TFLOP/s",
        "    20.5 s  screen 2048x4096x18432        850.0 TFLOP/s",
        "",
        "900 shapes tried, from 577 results that nearly fill whole waves, in 48 s (58 s with starting)",
    ]


def test_a_lead_that_is_chance_is_no_lead():
    lines = peak_lines(report(lead_ratio=0.0004, lead_low=-0.001, is_distinct=False))
    assert "sure?  ahead of the second by 0.04 %, which chance explains: the two cannot be told apart here" in lines


def test_refused_shapes_and_wrong_ones_are_told():
    lines = peak_lines(report(refused={"1x2x3": "out of memory"}, wrong=("4x5x6: 32 elements are not finite",)))
    assert lines[-2:] == [
        "1 shape could not be measured: 1x2x3 (out of memory)",
        "WRONG: 4x5x6: 32 elements are not finite",
    ]


@pytest.fixture
def answer(monkeypatch):
    """What the probe is asked, and answers."""
    asked = []

    def give(plain):
        def ask_probe(verb, timeout_s, environment, *, shows_progress=False):
            asked.append((verb, timeout_s, json.loads(environment["OFPEAK_PEAK"]), shows_progress))
            return json.dumps(plain) + "\n"

        monkeypatch.setattr(asking, "ask_probe", ask_probe)
        return asked

    return give


def test_the_command_asks_the_probe_and_prints_its_answer(answer, capsys):
    asked = answer(to_plain(report()))
    assert (
        exit_status(["peak", "--dtype", "fp8_e4m3", "--impl", "triton", "--protocol", "mamf", "--seconds", "30"]) == 0
    )
    ((verb, timeout_s, told, shows_progress),) = asked
    assert (verb, timeout_s, shows_progress) == ("peak", 210.0, True)
    assert told.pop("began_s") > 0
    assert told == {"dtype": "fp8_e4m3", "impl": "triton", "protocol": "mamf", "seconds": 30.0, "gpu": 0}
    assert capsys.readouterr().out == "\n".join(peak_lines(report())) + "\n"


def test_json_is_what_the_probe_told(answer, capsys):
    answer(to_plain(report()))
    assert exit_status(["peak", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == to_plain(report())


def test_a_wrong_result_ends_with_1(answer):
    answer(to_plain(report(wrong=("4x5x6: not finite",))))
    assert exit_status(["peak"]) == 1


@pytest.mark.parametrize(
    ("plain", "code", "said"),
    [
        ({"error": "no NVIDIA GPU here.", "exit_code": 2}, 2, "no NVIDIA GPU here."),
        ({"gpu": "x"}, 2, "the probe's answer cannot be read"),
        (to_plain(report(finalists=())), 2, "no finalist"),
    ],
)
def test_what_cannot_be_answered_is_one_line(answer, capsys, plain, code, said):
    answer(plain)
    assert exit_status(["peak"]) == code
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("option", [["--dtype", "int4"], ["--impl", "cutlass"], ["--seconds", "1"]])
def test_what_is_not_known_is_usage(option):
    assert exit_status(["peak", *option]) == 5
