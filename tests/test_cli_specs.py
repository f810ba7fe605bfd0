"""`ofpeak specs`: the table, one card whole, and a machine held against its data sheet."""

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from harness import specs
from harness.cli.app import exit_status
from harness.errors import ExitCode
from harness.spec_check import check_device
from tests.test_specs import H200 as H200_FACTS

DATA = Path(__file__).parent / "data"

H200 = {
    "facts": {
        "kind": "cuda",
        "name": "NVIDIA H200",
        "torch_device": "cuda:0",
        "gpu_count": 1,
        "compute_capability": [9, 0],
        "sm_count": 132,
        "memory_bytes": 150109880320,
        "l2_bytes": 62914560,
        "max_sm_clock_mhz": 1980,
        "memory_clock_mhz": 3201,
        "memory_bus_bits": 6016,
        "mig": False,
    },
    "nvml": {
        "memory_mib": 143771,
        "power_limit_w": 700.0,
        "power_limit_most_w": 700.0,
        "pcie_generation_max": 5,
        "pcie_lanes_max": 16,
        "nvlink_links": 18,
    },
    "driver": "580.159.04",
}


def gpu(facts: dict | None = None, nvml: dict | None = None, **others):
    return {**H200, "facts": H200["facts"] | (facts or {}), "nvml": H200["nvml"] | (nvml or {}), **others}


@pytest.fixture(autouse=True)
def columns(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "100")


@pytest.fixture
def probe(monkeypatch: pytest.MonkeyPatch):
    """A machine whose probe answers so."""

    def answer(stdout: str | bytes, returncode: int = 0, stderr: bytes = b""):
        said = stdout.encode() if isinstance(stdout, str) else stdout
        done = SimpleNamespace(returncode=returncode, stdout=said, stderr=stderr)
        monkeypatch.setattr("subprocess.run", lambda *_, **__: done)

    return answer


def said_of(capsys, probe, *gpus, arguments=()):
    probe(json.dumps({"gpus": list(gpus), "reason": ""}))
    status = exit_status(["specs", "check", *arguments])
    captured = capsys.readouterr()
    assert captured.err == ""
    return status, captured.out


def test_list_is_a_line_a_gpu_that_fits_100_columns(capsys):
    assert exit_status(["specs", "list"]) == ExitCode.DONE
    lines = capsys.readouterr().out.splitlines()
    assert lines[:5] == [
        "GPU                                              memory  BF16   FP8   FP4 NVLink  TDP  confidence",
        "                                                   GB/s    TFLOP/s, dense   GB/s    W",
        "V100 SXM2 16GB                                      900     –     –     –    300  300  datasheet",
        "V100 SXM2 32GB                                      900     –     –     –    300  300  datasheet",
        "V100 PCIe 16GB                                      900     –     –     –      –  250  datasheet",
    ]
    assert "B200 (HGX/DGX)                                     7700  2250  4500  9000   1800 1000  datasheet" in lines
    assert len(lines) == 2 + len(specs.gpus()) + 3
    assert max(map(len, lines)) <= 100


@pytest.mark.parametrize(("name", "golden"), [("NVIDIA B200", "b200"), ("H200 SXM 141GB", "h200")])
def test_show_prints_a_card_whole(name, golden, capsys):
    assert exit_status(["specs", "show", name]) == ExitCode.DONE
    assert capsys.readouterr().out == (DATA / f"specs_show_{golden}.txt").read_text(encoding="utf-8")


def test_every_card_can_be_shown_within_100_columns_and_no_cells_touch(capsys):
    for card in specs.gpus():
        assert exit_status(["specs", "show", card.name]) == ExitCode.DONE
        out = capsys.readouterr().out
        assert max(map(len, out.splitlines())) <= 100, card.name
        assert "None" not in out
        for word in ("read", "second hand", "unverified", "derived"):
            assert f"B{word}" not in out
            assert f"X{word}" not in out


def test_a_recalled_figure_is_shown_as_unverified_and_so_is_the_clock_that_it_implies(capsys):
    exit_status(["specs", "show", "NVIDIA H100 NVL"])
    lines = capsys.readouterr().out.splitlines()
    (fp8,) = (line for line in lines if line.startswith("  FP8 "))
    (clock,) = (line for line in lines if line.startswith("  FP32 peak"))
    assert "unverified" in fp8
    assert "unverified" in clock


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("B200", "Near names: 'NVIDIA B200', 'NVIDIA GB200', "),
        ("GH200", "Near names: 'NVIDIA GH200 480GB', 'NVIDIA GH200 144G HBM3e', "),
        ("NVIDIA H20O", "'NVIDIA H200'"),
        ("nvidia b200", "Near names: 'NVIDIA B200', "),
        ("", "`ofpeak specs list` names all."),
        ("MI300X", "`ofpeak specs list` names all."),
    ],
)
def test_less_than_a_whole_name_is_refused_with_near_ones(name, near, capsys):
    assert exit_status(["specs", "show", name]) == ExitCode.USAGE
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"ofpeak: no GPU is called '{name}'; only whole names count. ")
    assert near in captured.err
    assert captured.err.count("\n") == 1


def test_a_hostile_name_is_echoed_short_and_harmless(capsys):
    assert exit_status(["specs", "show", "\x1b[2J" + "H200" * 5000]) == ExitCode.USAGE
    err = capsys.readouterr().err
    assert "\x1b" not in err
    assert len(err) < 600


H200_CHECK = """\
NVIDIA H200, driver 580.159.04; data sheet: H200 SXM 141GB
                          device  data sheet
  SMs                        132         132  agrees
  memory               140.4 GiB     141 GiB  explained  a data sheet's GB are GiB, and firmware
                                                         keeps 0.4 % of them
  memory bus            6016 bit    6016 bit  agrees
  memory clock          3201 MHz    3201 MHz  agrees
  bandwidth            4814 GB/s   4800 GB/s  explained  clock × bus; the data sheet rounds
  maximum SM clock      1980 MHz    1980 MHz  agrees
  tensor SM clock       1980 MHz    1830 MHz  explained  tensor peaks are quoted at 1830 MHz; at the
                                                         maximum, BF16 could reach 1071 TFLOP/s,
                                                         108.2 % of its peak
  L2                      60 MiB      60 MiB  agrees
  power limit              700 W       700 W  agrees
  PCIe generation              5           5  agrees
  PCIe lanes                  16          16  agrees
  NVLink links                18          18  agrees
the data sheet's peaks hold; 3 differences explained, none open
"""


def test_check_explains_what_an_h200_says_of_itself(capsys, probe):
    assert said_of(capsys, probe, gpu()) == (ExitCode.DONE, H200_CHECK)


def test_equal_cards_are_told_once(capsys, probe):
    status, out = said_of(capsys, probe, gpu(), gpu(), gpu({"sm_count": 100}))
    assert status == ExitCode.FAILED
    assert out.startswith(f"2 × {H200_CHECK}\nNVIDIA H200, driver")
    assert out.count("; data sheet: ") == 2


def test_another_sm_count_is_no_data_sheets_card(capsys, probe):
    status, out = said_of(capsys, probe, gpu({"sm_count": 100}))
    assert status == ExitCode.FAILED
    lines = out.splitlines()
    assert lines[2] == "  SMs                        100         132  differs    another chip, or a share of this one"
    assert lines[17:20] == [
        "'NVIDIA H200' differs from its data sheet: 100 SMs, not 132; compute and memory peaks are derived",
        "  from its own SMs, clocks and bus. Compute peaks are upper bounds: they assume the maximum SM clock",
        "  FP64              25.34 TFLOP/s   100 SMs x 128 FLOP/clock/SM x 1980 MHz",
    ]
    assert lines[-1] == "  memory            4.814 TB/s      2 x 3201 MHz x 6016 bit / 8"


def test_an_unknown_gpu_gets_derived_peaks_and_exit_2(capsys, probe):
    status, out = said_of(capsys, probe, gpu({"name": "NVIDIA X1"}))
    assert status == ExitCode.INCONCLUSIVE
    assert out == (
        "NVIDIA X1, driver 580.159.04; data sheet: –\n"
        "no entry for 'NVIDIA X1' in harness/specs.toml; compute and memory peaks are derived from its own\n"
        "  SMs, clocks and bus. Compute peaks are upper bounds: they assume the maximum SM clock\n"
        "  FP64              33.45 TFLOP/s   132 SMs x 128 FLOP/clock/SM x 1980 MHz\n"
        "  FP64 tensor       66.91 TFLOP/s   132 SMs x 256 FLOP/clock/SM x 1980 MHz\n"
        "  FP32              66.91 TFLOP/s   132 SMs x 256 FLOP/clock/SM x 1980 MHz\n"
        "  TF32              535.3 TFLOP/s   132 SMs x 2048 FLOP/clock/SM x 1980 MHz\n"
        "  FP16              1071 TFLOP/s    132 SMs x 4096 FLOP/clock/SM x 1980 MHz\n"
        "  BF16              1071 TFLOP/s    132 SMs x 4096 FLOP/clock/SM x 1980 MHz\n"
        "  FP8               2141 TFLOP/s    132 SMs x 8192 FLOP/clock/SM x 1980 MHz\n"
        "  INT8              2141 TOP/s      132 SMs x 8192 FLOP/clock/SM x 1980 MHz\n"
        "  memory            4.814 TB/s      2 x 3201 MHz x 6016 bit / 8\n"
    )


def test_another_sm_count_without_clocks_still_differs(capsys, probe):
    silent = {"sm_count": 100, "max_sm_clock_mhz": None, "memory_clock_mhz": None}
    status, out = said_of(capsys, probe, gpu(silent))
    assert status == ExitCode.FAILED
    assert "100         132  differs" in out
    assert "upper bounds" not in out


def test_a_mig_instance_is_held_against_nothing(capsys, probe):
    status, out = said_of(capsys, probe, gpu({"name": "NVIDIA H200 MIG 1g.18gb", "mig": True, "sm_count": 16}))
    assert status == ExitCode.INCONCLUSIVE
    assert out.splitlines()[1].startswith("MIG instance: ")


def compared(facts=None, nvml=None, name="NVIDIA H200"):
    from harness.cli.told import read_devices

    (told,) = read_devices(json.dumps({"gpus": [gpu({"name": name, **(facts or {})}, nvml)]}))
    return {c.figure: c for c in check_device(told.facts, told.nvml).comparisons}


B200 = {
    "compute_capability": [10, 0],
    "sm_count": 148,
    "memory_bytes": 183359 * 2**20,
    "l2_bytes": 132644864,
    "max_sm_clock_mhz": 1965,
    "memory_clock_mhz": 3996,
    "memory_bus_bits": 7680,
}


def test_a_whole_bus_is_explained_by_the_enabled_capacity():
    """Older drivers report 8192 bit for a B200, of which 180 / 192 are enabled."""
    found = compared(B200 | {"memory_bus_bits": 8192}, {"memory_mib": 183359}, name="NVIDIA B200")
    assert found["memory bus"].verdict == found["bandwidth"].verdict == "explained"
    assert "180 of 192 GiB are enabled, and so are 7680 of 8192 bit" in found["memory bus"].note
    assert found["bandwidth"].device == pytest.approx(8183.8, abs=0.1)
    assert "it is 7672 GB/s" in found["bandwidth"].note


def test_an_h200s_whole_bus_is_144_gib():
    assert "141 of 144 GiB" in compared({"memory_bus_bits": 6144})["memory bus"].note


@pytest.mark.parametrize(
    ("facts", "nvml", "figure", "verdict"),
    [
        ({"memory_bus_bits": 5120}, {}, "memory bus", "differs"),
        ({"memory_bus_bits": 5120}, {}, "bandwidth", "differs"),
        ({"memory_clock_mhz": 2619}, {}, "memory clock", "differs"),
        ({"max_sm_clock_mhz": 1785}, {}, "maximum SM clock", "differs"),
        ({"max_sm_clock_mhz": 1500}, {}, "tensor SM clock", "differs"),
        ({"max_sm_clock_mhz": 1830}, {}, "tensor SM clock", "agrees"),
        ({"l2_bytes": 50 * 2**20}, {}, "L2", "differs"),
        ({"l2_bytes": 0}, {}, "L2", "unknown"),
        ({}, {"memory_mib": 81920}, "memory", "differs"),
        ({}, {"memory_mib": 144384}, "memory", "agrees"),
        ({}, {"power_limit_w": 500}, "power limit", "explained"),
        ({}, {"power_limit_w": 800}, "power limit", "differs"),
        ({}, {"power_limit_w": None}, "power limit", "unknown"),
        ({}, {"pcie_generation_max": 4}, "PCIe generation", "explained"),
        ({}, {"pcie_lanes_max": 8}, "PCIe lanes", "explained"),
        ({}, {"pcie_lanes_max": 32}, "PCIe lanes", "differs"),
        ({}, {"nvlink_links": 17}, "NVLink links", "differs"),
        ({}, {"nvlink_links": 0}, "NVLink links", "unknown"),
    ],
)
def test_each_difference_has_its_verdict(facts, nvml, figure, verdict):
    assert compared(facts, nvml)[figure].verdict == verdict


def test_gddr_cards_lose_memory_to_ecc_and_that_is_explained():
    facts = {"sm_count": 72, "memory_bytes": 22 * 2**30, "memory_bus_bits": 384, "memory_clock_mhz": 6251}
    found = compared(facts, {"memory_mib": 23028}, name="NVIDIA A10")
    assert found["memory"].verdict == "explained"
    assert "ECC and firmware keep 6.3 %" in found["memory"].note
    assert found["bandwidth"].verdict == "agrees"


def test_a_shared_memory_is_not_judged_by_what_its_driver_reports():
    facts = {"sm_count": 48, "memory_bytes": 120 * 2**30, "memory_bus_bits": 0, "memory_clock_mhz": 0}
    found = compared(facts, {"memory_mib": None}, name="NVIDIA GB10")
    assert found["memory"].verdict == "explained"
    assert {found[name].verdict for name in ("memory bus", "memory clock", "bandwidth")} == {"unknown"}


def test_a_card_that_says_nothing_differs_in_nothing():
    facts = dict.fromkeys(set(H200["facts"]) - {"name"})
    found = compared(facts, dict.fromkeys(H200["nvml"]))
    assert {c.verdict for c in found.values()} == {"unknown"}


def test_check_as_json_has_base_units_and_the_exit_code(capsys, probe):
    status, out = said_of(capsys, probe, gpu(), arguments=["--format", "json"])
    assert status == ExitCode.DONE
    (card,) = json.loads(out)["gpus"]
    assert (card["name"], card["data_sheet"], card["match"], card["exit_code"]) == (
        "NVIDIA H200",
        "H200 SXM 141GB",
        "exact",
        0,
    )
    assert card["peaks"]["memory"] == {"value": 4.8e12, "unit": "B/s", "provenance": "second_hand"}
    assert card["comparisons"][0] == {
        "figure": "SMs",
        "unit": "",
        "device": 132,
        "data_sheet": 132,
        "verdict": "agrees",
        "note": "",
    }


def complaint(capsys):
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("ofpeak: ")
    assert captured.err.count("\n") == 1
    assert "\x1b" not in captured.err
    assert len(captured.err) < 600
    return captured.err


def test_a_machine_without_gpu_is_one_line_and_exit_2(capsys, probe):
    probe('{"gpus": [], "reason": "NVML is not installed (no NVIDIA driver)"}\n')
    assert exit_status(["specs", "check"]) == ExitCode.INCONCLUSIVE
    assert complaint(capsys) == (
        "ofpeak: no NVIDIA GPU here: NVML is not installed (no NVIDIA driver). Nothing to hold against a data sheet.\n"
    )


@pytest.mark.parametrize(
    "answer",
    [
        "",
        "\n \n",
        "Segmentation fault",
        '{"gpus": [{"facts": {"name": "NVIDIA H2',
        "[" * 100_000,
        "\x1b[2J\x1b]0;owned\x07" * 1000,
        "[]",
        "null",
        "1e999",
        "{}",
        '{"gpus": "many"}',
        '{"gpus": [1]}',
        '{"gpus": [{}]}',
        '{"gpus": [{"facts": []}]}',
        '{"gpus": [{"facts": {"name": 7}}]}',
        '{"gpus": [{"facts": {"name": " "}}]}',
        b"\xff\xfe\x00\x80",
        '{"error": "no \\u001b[31mway", "exit_code": 0}',
    ],
)
def test_an_unreadable_answer_is_one_line_and_exit_2(answer, capsys, probe):
    probe(answer)
    assert exit_status(["specs", "check"]) == ExitCode.INCONCLUSIVE
    complaint(capsys)


def test_a_failed_probe_is_told_by_its_last_line(capsys, probe):
    probe("", returncode=1, stderr=b"Traceback\n  ...\nModuleNotFoundError: no \x1b[31mtorch\n")
    assert exit_status(["specs", "check"]) == ExitCode.INCONCLUSIVE
    assert complaint(capsys) == "ofpeak: the probe failed (exit 1): ModuleNotFoundError: no \\x1b[31mtorch\n"


def test_a_probe_that_hangs_is_given_up(capsys, monkeypatch):
    def hang(*_, **__):
        raise subprocess.TimeoutExpired("probe", 120)

    monkeypatch.setattr("subprocess.run", hang)
    assert exit_status(["specs", "check"]) == ExitCode.INCONCLUSIVE
    assert "did not answer within 120 s" in complaint(capsys)


def test_nonsense_in_an_answer_counts_as_unknown_and_moves_no_terminal(capsys, probe):
    facts = {
        "sm_count": "132",
        "memory_bytes": -1,
        "l2_bytes": True,
        "max_sm_clock_mhz": 1e300,
        "memory_clock_mhz": [3201],
        "memory_bus_bits": 10**400,
        "compute_capability": ["9", None],
    }
    nvml = {"power_limit_w": "\x1b[2J", "memory_mib": float("nan"), "nvlink_links": {}}
    status, out = said_of(capsys, probe, gpu(facts, nvml, driver=["x"]))
    assert status == ExitCode.DONE
    assert out.startswith("NVIDIA H200; data sheet: H200 SXM 141GB\n")
    assert out.endswith(
        "the data sheet's peaks hold (matched by name; not confirmed: SM count, memory size); 0 differences\n"
        "  explained, 10 figures unknown\n"
    )


def test_a_hostile_name_and_driver_are_shown_as_text(capsys, probe):
    name = "NVIDIA\x1b[2J\u202e[bold]X" + "9" * 10_000
    status, out = said_of(capsys, probe, gpu({"name": name}, driver="5\x07\n8"))
    assert status == ExitCode.INCONCLUSIVE
    assert not {"\x1b", "\x07", "\u202e"} & set(out)
    assert "[bold]X" in out
    assert len(out) < 3000


def test_warnings_before_the_answer_do_no_harm(capsys, probe):
    probe("a warning\n" + json.dumps({"gpus": [gpu()]}) + "\n")
    assert exit_status(["specs", "check"]) == ExitCode.DONE
    assert capsys.readouterr().out == H200_CHECK


def test_specs_without_a_verb_prints_help_and_is_no_success(capsys):
    assert exit_status(["specs"]) == ExitCode.USAGE
    assert capsys.readouterr().out.startswith("Usage: ofpeak specs")


def test_the_facts_of_a_committed_run_agree_with_the_data_sheet():
    check = check_device(H200_FACTS, {})
    assert not check.differing


def test_specs_and_claims_need_nothing_heavy():
    """Some versions of typer load pydantic themselves, so it is hidden from our own modules alone."""
    code = """
import builtins, sys
found = builtins.__import__
def hide(name, space=None, *rest):
    root, asker = name.partition(".")[0], (space or {}).get("__name__") or ""
    if root in ("torch", "pandas", "numpy", "scipy", "plotly") or (root == "pydantic" and asker.startswith("harness")):
        raise ImportError(name)
    return found(name, space, *rest)
builtins.__import__ = hide
from harness.cli.app import exit_status
print([int(exit_status(a)) for a in (["specs", "list"], ["specs", "show", "NVIDIA B200"], ["claims"])])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout.splitlines()[-1] == "[0, 0, 0]"


class FakeLibrary:
    """NVML functions that answer from here; what is missing is unknown."""

    class NVMLError(Exception):
        """As pynvml's."""

    nvmlDeviceGetMemoryInfo = staticmethod(lambda handle: SimpleNamespace(total=143771 * 2**20))  # noqa: N815
    nvmlDeviceGetEnforcedPowerLimit = staticmethod(lambda handle: 700_000)  # noqa: N815
    nvmlDeviceGetPowerManagementLimitConstraints = staticmethod(lambda handle: [200_000, 700_000])  # noqa: N815
    nvmlDeviceGetMaxPcieLinkGeneration = staticmethod(lambda handle: 5)  # noqa: N815


def test_the_probe_tells_what_nvml_says_and_none_where_it_does_not():
    from harness.probe.__main__ import told
    from harness.probe.nvml import Gpu

    assert told(Gpu(FakeLibrary, None)) == {
        "memory_mib": 143771,
        "power_limit_w": 700.0,
        "power_limit_most_w": 700.0,
        "pcie_generation_max": 5,
        "pcie_lanes_max": None,
        "nvlink_links": None,
    }
