"""The instrument's check of itself: what is judged, what is printed, and how the command ends."""

import json
import subprocess
import sys
from dataclasses import replace

import pytest

from harness.cli import selfcheck as verb
from harness.cli.app import exit_status
from harness.errors import ExitCode
from harness.model import Ruler, RulerPart, Telemetry, to_plain
from harness.report.selfcheck import selfcheck_lines
from harness.selfcheck import (
    Block,
    SelfCheck,
    judge_clocks,
    judge_energy,
    judge_sm_spread,
    judge_watching,
    unbounded,
)

GEMM = Telemetry(
    sm_clock_mhz=1300.0,
    sm_clock_slowest_mhz=1299.0,
    sm_clock_fastest_mhz=1301.0,
    sms_covered=132,
    nvml_sm_clock_mhz=1430.0,
    power_counter_w=690.0,
    power_instant_w=686.0,
    power_samples_w=683.0,
    energy_check_ratio=0.0102,
)


def blocks(*changes, cycles=None):
    """Pairs of blocks of 1 ms a launch, the watched one longer by so much; every other pair begins watched."""
    made = []
    for number, change in enumerate(changes):
        watched = Block(True, 1e-3 * (1 + change), None if cycles is None else 2e6 * (1 + cycles))
        alone = Block(False, 1e-3, None if cycles is None else 2e6)
        made += [watched, alone] if number % 2 else [alone, watched]
    return made


def test_watching_is_judged_by_its_upper_bound():
    # Changes of 0.00 and 0.02 % in turn: mean 0.01 %, sd 0.011 %, so at most 0.018 % with five degrees of freedom.
    part = judge_watching("copy_time", blocks(0.0, 2e-4, 0.0, 2e-4, 0.0, 2e-4))
    assert part.passed is True
    assert part.value == pytest.approx(1e-4)
    assert part.detail == "at most +0.019 % (95 %, 6 pairs)"


def test_watching_that_costs_half_a_percent_is_out_of_bounds():
    part = judge_watching("copy_time", blocks(5e-3, 5.1e-3, 5e-3, 5.1e-3, 5e-3))
    assert part.passed is False


def test_watching_behind_the_loads_own_noise_is_not_judged():
    part = judge_watching("gemm_time", blocks(-0.01, 0.011, -0.01, 0.01, -0.01, 0.01))
    assert part.passed is None
    assert part.detail.endswith(": the load's own noise hides it")


def test_noise_in_time_that_is_the_clocks_drops_out_of_cycles():
    noisy = blocks(-0.02, 0.02, -0.01, 0.01, -0.02, 0.02, cycles=1e-5)
    assert judge_watching("gemm_time", noisy).passed is None
    assert judge_watching("gemm_cycles", noisy, by_cycles=True).passed is True


def test_watching_without_cycles_or_with_few_pairs_is_unknown():
    assert judge_watching("gemm_cycles", blocks(*[0.0] * 6), by_cycles=True).detail == "only 0 pairs of blocks"
    assert judge_watching("copy_time", blocks(0.0, 0.0)).value is None


def test_two_watched_blocks_are_no_pair():
    with pytest.raises(ValueError, match="one watched block"):
        judge_watching("copy_time", [Block(True, 1.0)] * 10)


def test_unbounded_part_tells_and_judges_nothing():
    part = unbounded(judge_watching("gemm_time", blocks(*[5e-3, 5.1e-3] * 3)))
    assert (part.passed, part.high) == (None, None)
    assert part.value == pytest.approx(5.05e-3)


@pytest.mark.parametrize(("ratio", "passed"), [(0.029, True), (-0.029, True), (0.031, False), (-0.031, False)])
def test_energy_is_judged_at_three_percent(ratio, passed):
    part = judge_energy("gemm", replace(GEMM, energy_check_ratio=ratio))
    assert part.passed is passed
    assert part.detail == "counter 690.0 W, instant field 686.0 W, 20 ms samples 683.0 W"


def test_energy_of_one_source_is_not_judged():
    lone = Telemetry(power_instant_w=600.0, missing={"power_w": "Not Supported"})
    part = judge_energy("copy", lone)
    assert (part.passed, part.value) == (None, None)
    assert part.detail == "instant field 600.0 W (Not Supported)"


def test_clocks_are_judged_without_tensor_load_and_told_with_it():
    told = judge_clocks("gemm_nvml", GEMM, has_tensor_load=True)
    assert (told.passed, told.high) == (None, None)
    assert told.value == pytest.approx(0.1)
    assert judge_clocks("copy_nvml", GEMM, has_tensor_load=False).passed is False
    agreeing = replace(GEMM, nvml_sm_clock_mhz=1303.0)
    assert judge_clocks("copy_nvml", agreeing, has_tensor_load=False).passed is True


def test_unknown_clock_is_unknown_with_its_reason():
    part = judge_clocks("copy_nvml", Telemetry(missing={"sm_clock_mhz": "stamps came from 3 of 132 SMs"}), False)
    assert (part.passed, part.detail) == (None, "stamps came from 3 of 132 SMs")


def test_sms_one_percent_apart_are_out_of_bounds():
    assert judge_sm_spread("gemm_sms", GEMM).passed is True
    assert judge_sm_spread("gemm_sms", replace(GEMM, sm_clock_fastest_mhz=1320.0)).passed is False
    assert judge_sm_spread("gemm_sms", Telemetry()).passed is None


def found(watching=True, ruler_passed=True):
    """A check with two parts of each kind."""
    rate = RulerPart("rate", ruler_passed, 1.16e-5, "ratio", -1e-4, 1e-4, "± 1.5 ppm over 14.1 s")
    tick = RulerPart("tick", True, 32e-9, "s", 0.0, 2e-6)
    gap = RulerPart("gap", True, 1.4e-6, "s", 0.0, None, "an empty kernel, enqueued as cases are")
    spin = RulerPart("spin_20us", True, 1.6e-6, "s", -2e-7, 1.6e-6, "reads 2.16e-05 s")
    pipe = RulerPart("pipe_bf16", True, 0.9994, "ratio", 0.99, 1.005, "871.8 TFLOP/s at 1613 MHz for 0.30 s")
    bounded = RulerPart("copy_time", watching, 1e-4, "ratio", None, 0.002, "at most +0.018 % (95 %, 12 pairs)")
    return SelfCheck(
        "NVIDIA Test",
        {"driver": "580.1", "card": "c0ffee"},
        Ruler("ok" if ruler_passed else "off", (tick, rate, gap, spin, pipe)),
        {
            "watching": (bounded,),
            "energy": (RulerPart("at_rest", None, 125.8, "W", detail="context open, over 1.5 s at 40.0 °C"),),
            "clocks": (judge_clocks("gemm_nvml", GEMM, has_tensor_load=True), judge_sm_spread("gemm_sms", GEMM)),
        },
    )


def test_screen_of_a_sound_instrument():
    assert "\n".join(selfcheck_lines(found())) == (
        "NVIDIA Test: driver 580.1, card c0ffee\n"
        "\n"
        "ruler: the timer, launches of known length, the tensor pipe's rate\n"
        "  ok  timer's tick              32.00 ns  at most 2.000 µs\n"
        "  ok  timer's rate             +11.6 ppm  within ± 100.0 ppm      ± 1.5 ppm over 14.1 s\n"
        "  ok  gap between launches      1.400 µs                          an empty kernel, enqueued as cases are\n"
        "  ok  spin of 20 µs             1.600 µs  -200.0 ns to 1.600 µs   reads 2.16e-05 s\n"
        "  ok  tensor pipe, bf16          99.94 %  99.00 % to 100.50 %     871.8 TFLOP/s at 1613 MHz for 0.30 s\n"
        "\n"
        "watching: how much longer a launch takes while NVML is read (on / off - 1)\n"
        "  ok  copy, time                +0.010 %  at most +0.200 %        at most +0.018 % (95 %, 12 pairs)\n"
        "\n"
        "energy: the counter against the driver's other sources of power\n"
        "  –   card at rest               125.8 W                          context open, over 1.5 s at 40.0 °C\n"
        "\n"
        "clocks: NVML's over the SMs' own - 1, and how far apart the SMs are\n"
        "  –   GEMM, NVML / true        +10.000 %                          true 1300 MHz, NVML 1430 MHz\n"
        "  ok  GEMM, SMs apart           +0.154 %  at most +1.000 %        132 SMs, 1299.0 to 1301.0 MHz\n"
        "\n"
        "OK: everything is within its bounds."
    )


def test_last_line_names_what_is_off_or_open():
    off = selfcheck_lines(found(watching=False, ruler_passed=False))[-1]
    assert off == ("OFF: timer's rate; copy, time. Figures of this machine are not to be used until that is explained.")
    assert selfcheck_lines(found(watching=None))[-1] == (
        "NOT DECIDED: copy, time. Everything else is within its bounds."
    )


@pytest.mark.parametrize(
    ("check", "code"),
    [(found(), ExitCode.DONE), (found(watching=False), ExitCode.FAILED), (found(watching=None), ExitCode.INCONCLUSIVE)],
)
def test_command_ends_with_what_was_found(monkeypatch, capsys, check, code):
    monkeypatch.setattr(verb, "ask", lambda gpu: to_plain(check))
    assert exit_status(["selfcheck"]) == code
    assert capsys.readouterr().out == "\n".join(selfcheck_lines(check)) + "\n"


def test_json_is_the_probes_answer(monkeypatch, capsys):
    monkeypatch.setattr(verb, "ask", lambda gpu: to_plain(found()))
    assert exit_status(["selfcheck", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(to_plain(found())))


@pytest.mark.parametrize("answer", [{}, {"gpu": 3}, {"gpu": "x", "ruler": []}, {"parts": {"a": [1]}}])
def test_answer_of_another_shape_is_refused_in_a_line(monkeypatch, capsys, answer):
    monkeypatch.setattr(verb, "ask", lambda gpu: answer)
    assert exit_status(["selfcheck"]) == ExitCode.INCONCLUSIVE
    assert capsys.readouterr().err.startswith("ofpeak: the probe's answer cannot be read: ")


@pytest.mark.parametrize(
    ("returncode", "out", "told"),
    [
        (0, b"", "the probe's answer cannot be read: it is no object"),
        (139, b"x", "the probe failed (exit 139): see above"),
        (0, b"Warning\nno json", "the probe's answer cannot be read: it ends in 'no json'"),
        (0, b"[1]", "the probe's answer cannot be read: it is no object"),
        (0, b'{"error": "no GPU", "exit_code": 2}', "no GPU"),
    ],
)
def test_probe_that_fails_is_told_in_a_line(monkeypatch, capsys, returncode, out, told):
    monkeypatch.setattr(
        subprocess, "run", lambda *a, **k: subprocess.CompletedProcess(a, returncode, stdout=out, stderr=None)
    )
    assert exit_status(["selfcheck"]) == ExitCode.INCONCLUSIVE
    assert told in capsys.readouterr().err


def test_machine_without_a_gpu_has_no_instrument_to_check(monkeypatch):
    asked = subprocess.run(
        [sys.executable, "-m", "harness.probe", "selfcheck"], capture_output=True, text=True, check=True
    )
    if "error" not in json.loads(asked.stdout):
        pytest.skip("this machine has a GPU")
    assert json.loads(asked.stdout) == {
        "error": "no NVIDIA GPU here: on a CPU there is no instrument to check.",
        "exit_code": 2,
    }
