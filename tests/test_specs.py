"""The spec table against first principles, and the look-up against everything that could pass for a match."""

import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from harness import specs
from harness.model import DeviceFacts, PeakSheet
from harness.units import GIB, MIB

ROWS = {gpu.name: gpu for gpu in specs.gpus()}

H200 = DeviceFacts(
    kind="cuda",
    name="NVIDIA H200",
    torch_device="cuda:0",
    gpu_count=1,
    compute_capability=(9, 0),
    sm_count=132,
    memory_bytes=143771 * MIB,
    l2_bytes=60 * MIB,
    max_sm_clock_mhz=1980.0,
    memory_clock_mhz=3201.0,
    memory_bus_bits=6016,
)
UNKNOWN = replace(H200, name="NVIDIA X1")

EXCEPTIONS = {(entry.gpu, entry.figure): entry.reason for entry in specs.exceptions()}


def stored_peaks():
    for gpu in specs.gpus():
        for figure in (specs.BANDWIDTH, *specs.DTYPES):
            if gpu.value(figure) is not None:
                yield gpu, figure, gpu.value(figure)


def raw_rows():
    return tomllib.loads(Path(specs.__file__).with_name("specs.toml").read_text(encoding="utf-8"))["gpu"]


def test_the_table_has_46_gpus_with_names_of_their_own():
    nvml_names = [name for gpu in specs.gpus() for name in gpu.nvml_names]
    assert len(specs.gpus()) == len(ROWS) == 46
    assert len(set(nvml_names)) == len(nvml_names)


def test_every_stored_peak_follows_from_first_principles_within_1_percent():
    """Every exception must be needed, and each says why."""
    off = {}
    for gpu, figure, stored in stored_peaks():
        computed = specs.derivation(gpu, figure)
        if (gpu.name, "*") in EXCEPTIONS:
            assert computed is None
        elif computed is None or abs(computed.deviation_ratio) > 0.01:
            off[gpu.name, figure] = (stored, computed)
    assert set(off) == {key for key in EXCEPTIONS if key[1] != "*"}, off
    assert all(EXCEPTIONS.values())
    assert len(EXCEPTIONS) == len(specs.exceptions())
    assert {name for name, _ in EXCEPTIONS} <= set(ROWS)


@pytest.mark.parametrize(
    ("name", "figure", "value", "formula"),
    [
        ("H100 SXM5 80GB", "bf16", 132 * 4096 * 1830e-6, "132 × 4096 × 1830 MHz"),
        ("H100 SXM5 80GB", "fp64", 132 * 128 * 1980e-6, "132 × 128 × 1980 MHz"),  # at the CUDA cores' clock
        ("H200 SXM 141GB", "memory.gb_per_s", 6016 * 6.402 / 8, "6016 bit × 6.402 Gbit/s / 8"),
        ("B200 (HGX/DGX)", "fp4", 9000, "148 × 32768 × 1856 MHz"),  # the clock that FP16 implies
    ],
)
def test_a_derivation_is_what_its_formula_says(name, figure, value, formula):
    derived = specs.derivation(ROWS[name], figure)
    assert derived.formula == formula
    assert derived.value == pytest.approx(value, rel=1e-9)


def test_a_peak_that_gave_the_clock_is_not_said_to_follow_from_it():
    assert specs.derivation(ROWS["B200 (HGX/DGX)"], "bf16").is_circular
    assert not specs.derivation(ROWS["B200 (HGX/DGX)"], "fp8").is_circular
    assert not specs.derivation(ROWS["B200 (HGX/DGX)"], "fp32").is_circular
    assert not specs.derivation(ROWS["H100 SXM5 80GB"], "bf16").is_circular


@pytest.mark.parametrize(
    ("name", "dtype", "flop_per_byte"),
    [("H100 SXM5 80GB", "bf16", 295), ("A100 SXM4 40GB", "bf16", 201), ("RTX 4090", "bf16", 164)],
)
def test_ridge_points_are_the_published_ones(name, dtype, flop_per_byte):
    assert round(specs.ridge_flop_per_byte(ROWS[name], dtype)) == flop_per_byte


def test_every_trap_names_rows_that_exist_and_stands_once():
    raw = tomllib.loads(Path(specs.__file__).with_name("specs.toml").read_text(encoding="utf-8"))["trap"]
    assert {name for trap in raw for name in trap["gpus"]} <= set(ROWS)
    for trap in raw:
        assert len(set(trap["gpus"])) == len(trap["gpus"])
        assert "\n" not in trap["text"]
    assert any("2:4-sparse" in text for text in specs.traps(ROWS["H100 SXM5 80GB"]))


@pytest.mark.parametrize("name", ["NVIDIA B200", "B200 (HGX/DGX)"])
def test_a_row_is_named_by_either_of_its_names(name):
    assert specs.named(name) is ROWS["B200 (HGX/DGX)"]


def test_part_of_a_name_names_nothing_but_suggests_what_holds_it():
    assert specs.named("B200") is None
    assert specs.near_names("B200")[0] == "NVIDIA B200"
    assert specs.near_names("H20")[0] == "NVIDIA H20"
    assert specs.near_names("GH200")[:2] == ["NVIDIA GH200 480GB", "NVIDIA GH200 144G HBM3e"]
    assert specs.near_names("???") == []


def test_the_b100s_peaks_stand_in_the_ratios_of_its_chip():
    """Without an SM count only the dtypes' ratios can be checked; 1.8 PFLOP/s sparse TF32 is a rounded 1.75."""
    gpu = ROWS["B100 (HGX)"]
    for dtype in specs.TENSOR_DTYPES:
        expected = 1750 * gpu.flop_per_clock_per_sm[dtype] / gpu.flop_per_clock_per_sm["bf16"]
        assert gpu.value(dtype) == pytest.approx(expected, rel=0.03)


def test_no_stored_tensor_peak_is_a_sparse_one():
    """A sparse figure would imply twice the clock: above what the driver allows, or any GPU here reaches."""
    for gpu, figure, _ in stored_peaks():
        implied_mhz = gpu.quoted_clock_mhz(figure) if figure in specs.TENSOR_DTYPES else None
        if implied_mhz is not None:
            highest_mhz = gpu.value("clock_mhz.max") or gpu.value("clock_mhz.tensor") or 2700
            assert implied_mhz <= 1.01 * highest_mhz, (gpu.name, figure)


@pytest.mark.parametrize(
    ("name", "dtype", "dense", "sparse"),
    [
        ("H100 SXM5 80GB", "bf16", 989.4, 1979),
        ("H100 SXM5 80GB", "fp8", 1978.9, 3958),
        ("H200 SXM 141GB", "tf32", 494.5, 989),
        ("L4", "fp16", 121, 242),
        ("RTX A6000", "bf16", 154.8, 309.7),
        ("A100 SXM4 80GB", "bf16", 312, 624),
        ("B200 (HGX/DGX)", "bf16", 2250, 4500),
        ("GB200 (per GPU, NVL72/NVL4)", "fp4", 10000, 20000),
        ("GB10 (DGX Spark)", "fp4", 500, 1000),
    ],
)
def test_the_dense_figure_is_stored_where_the_document_prints_the_sparse_one(name, dtype, dense, sparse):
    assert ROWS[name].value(dtype) == dense != sparse


@pytest.mark.parametrize(("name", "fp16_accumulate"), [("RTX 3090", 142), ("RTX 4090", 330.3), ("RTX 5090", 419)])
def test_geforce_peaks_are_those_of_fp32_accumulation(name, fp16_accumulate):
    assert ROWS[name].value("fp16") == pytest.approx(fp16_accumulate / 2, rel=0.01)


def test_no_figure_is_zero():
    for gpu in specs.gpus():
        assert all(figure.value > 0 for figure in gpu.figures.values()), gpu.name


def test_every_name_in_a_provenance_list_is_a_figure_of_its_row_and_listed_once():
    for row in raw_rows():
        figures = set(ROWS[row["name"]].figures)
        known = figures | {figure.split(".")[0] for figure in figures}
        listed = [name for p in ("read", "second_hand", "recalled", "derived") for name in row.get(p, [])]
        assert set(listed) <= known, row["name"]
        assert len(set(listed)) == len(listed), row["name"]


def test_provenance_is_per_figure():
    h200 = ROWS["H200 SXM 141GB"].figures
    assert h200["memory.bus_bits"].provenance == "read"
    assert h200["bf16"].provenance == "second_hand"
    assert h200["clock_mhz.tensor"].provenance == "derived"
    assert ROWS["A800 SXM4 80GB"].figures["nvlink.links"].provenance == "second_hand"


def test_a_recalled_figure_is_not_verified():
    facts = replace(H200, name="NVIDIA H100 NVL", memory_bytes=94 * GIB)
    peaks = specs.lookup(facts).peaks
    assert peaks["bf16"].is_verified
    assert not peaks["fp8"].is_verified
    assert not peaks["memory"].is_verified


def test_no_peak_of_a_row_whose_clock_is_recalled_is_called_derived():
    """The Max-Q's and Thor's tensor peaks are computed, but from recalled clocks: that verifies nothing."""
    for name, dtype in (
        ("RTX PRO 6000 Blackwell Max-Q Workstation Edition", "bf16"),
        ("Jetson AGX Thor (T5000)", "fp8"),
    ):
        assert ROWS[name].figures[dtype].provenance == "recalled"


def test_every_row_finds_itself_by_each_of_its_names():
    for gpu in specs.gpus():
        for name in gpu.nvml_names:
            facts = DeviceFacts(
                kind="cuda",
                name=name,
                torch_device="cuda:0",
                compute_capability=gpu.compute_capability,
                sm_count=gpu.value("sm_count") and int(gpu.value("sm_count")),
                memory_bytes=int(gpu.value("memory.size_gib") * GIB),
            )
            sheet = specs.lookup(facts)
            assert (sheet.gpu, sheet.match) == (gpu.name, "exact")
            assert specs.chip_rates(facts) == sheet.flop_per_clock_per_sm


def test_a_real_h200_gets_the_peaks_of_its_data_sheet():
    sheet = specs.lookup(H200)
    assert (sheet.gpu, sheet.match, sheet.reason, sheet.sm_count) == ("H200 SXM 141GB", "exact", "", 132)
    assert sheet.peaks["memory"].value == 4.8e12
    assert sheet.peaks["bf16"].value == 989.5e12
    assert sheet.peaks["fp8"].value == 1979e12
    assert sheet.peaks["bf16"].clock_mhz == pytest.approx(1830, abs=1)
    assert sheet.peaks["nvlink"].value == 450e9
    assert sheet.peaks["nvlink_both"].value == 900e9
    assert "host_link" not in sheet.peaks
    assert "fp4" not in sheet.peaks
    assert sheet.flop_per_clock_per_sm["bf16"] == 4096


def test_a_peak_is_its_clock_times_rate_times_sms():
    """So that spec_ratio = at_clock_ratio x clock_ratio holds exactly, also where two clocks are mixed."""
    for gpu in specs.gpus():
        for dtype in specs.DTYPES:
            quoted_mhz = gpu.quoted_clock_mhz(dtype)
            if quoted_mhz is not None:
                flop_per_s = gpu.value("sm_count") * gpu.flop_per_clock_per_sm[dtype] * quoted_mhz * 1e6
                assert flop_per_s == pytest.approx(gpu.value(dtype) * 1e12, rel=1e-12)


@pytest.mark.parametrize(
    ("name", "shown_mib"),
    [
        ("NVIDIA A100-SXM4-80GB", 81920),
        ("NVIDIA B200", 183359),
        ("NVIDIA GB200", 189471),
        ("NVIDIA B300 SXM6 AC", 275040),
        ("NVIDIA GB300", 284208),
        ("NVIDIA A10", 23028),  # 24 GiB less ECC, which GDDR keeps in the memory itself
        ("NVIDIA L40S", 46068),
        ("Tesla T4", 15360),
        ("NVIDIA GeForce RTX 4090", 24564),
        ("Orin", 61 * 1024),  # what the system leaves of a pool that the CPU shares
    ],
)
def test_memory_a_little_under_the_data_sheet_is_a_match(name, shown_mib):
    gpu = specs.find(name)
    facts = DeviceFacts("cuda", name, "cuda:0", sm_count=int(gpu.value("sm_count")), memory_bytes=shown_mib * MIB)
    assert specs.lookup(facts).match == "exact"


@pytest.mark.parametrize(
    "name",
    [
        "NVIDIA H2",
        "NVIDIA H200 ",
        "nvidia h200",
        "H200",
        "NVIDIA H100",
        "NVIDIA H20 NVL16",
        "NVIDIA A100-SXM-64GB",
        "NVIDIA A10M",
        "NVIDIA RTX A1000",
        "NVIDIA T400",
        "NVIDIA GeForce RTX 4090 D",
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "NVIDIA GeForce RTX 5090 D v2",
    ],
)
def test_a_near_name_is_not_a_match(name):
    assert specs.find(name) is None


@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("NVIDIA H20", "H20 96GB"),
        ("NVIDIA A10", "A10"),
        ("NVIDIA A10G", "A10G"),
        ("NVIDIA L4", "L4"),
        ("NVIDIA L40", "L40"),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA B200", "B200 (HGX/DGX)"),
        ("NVIDIA GB200", "GB200 (per GPU, NVL72/NVL4)"),
        ("NVIDIA H200 NVL", "H200 NVL 141GB"),
    ],
)
def test_names_inside_each_other_find_their_own_row(name, row):
    assert specs.find(name).name == row


def test_another_sm_count_falls_back_to_derivation():
    sheet = specs.lookup(replace(H200, sm_count=100))
    assert (sheet.gpu, sheet.match) == (None, "derived")
    assert sheet.reason == (
        "'NVIDIA H200' differs from its data sheet: 100 SMs, not 132; "
        "compute and memory peaks are derived from its own SMs, clocks and bus"
    )
    assert sheet.peaks["bf16"].value == 100 * 4096 * 1980e6
    assert sheet.peaks["bf16"].clock_mhz == 1980
    assert sheet.peaks["bf16"].provenance == "derived"


def test_another_memory_size_falls_back_to_derivation():
    """A DGX Station's GPU is a `NVIDIA GB300` too, with 252 of the NVL72's 279 GiB and 7.1 TB/s."""
    facts = DeviceFacts(
        "cuda",
        "NVIDIA GB300",
        "cuda:0",
        compute_capability=(10, 3),
        sm_count=152,
        memory_bytes=251 * GIB,
        memory_clock_mhz=3996,
        memory_bus_bits=7168,
    )
    sheet = specs.lookup(facts)
    assert sheet.match == "derived"
    assert "251.0 GiB of memory, not 279" in sheet.reason
    assert sheet.peaks["memory"].value == pytest.approx(7.161e12, rel=1e-4)
    assert "bf16" not in sheet.peaks  # no clock is known
    assert "nvlink" not in sheet.peaks


def test_an_unknown_gpu_gets_peaks_from_its_own_facts():
    sheet = specs.lookup(UNKNOWN)
    assert (sheet.gpu, sheet.match) == (None, "derived")
    assert sheet.reason.startswith("no entry for 'NVIDIA X1' in harness/specs.toml; ")
    assert sheet.peaks["memory"].value == pytest.approx(4814.3e9, rel=1e-4)
    assert sheet.peaks["fp8"].value == 132 * 8192 * 1980e6
    assert not {"nvlink", "nvlink_both", "host_link"} & set(sheet.peaks)


def test_a_full_hbm_bus_warns_that_part_of_it_may_be_unused():
    full = specs.lookup(replace(UNKNOWN, memory_bus_bits=6144)).peaks["memory"]
    assert "may report the full HBM bus" in full.source
    assert specs.lookup(UNKNOWN).peaks["memory"].source == "2 x 3201 MHz x 6016 bit / 8"


def test_unknown_or_zero_facts_leave_their_peak_absent():
    for clock in (None, 0.0):
        sheet = specs.lookup(replace(UNKNOWN, memory_clock_mhz=clock))
        assert "memory" not in sheet.peaks
        assert "bf16" in sheet.peaks
        sheet = specs.lookup(replace(UNKNOWN, max_sm_clock_mhz=clock))
        assert set(sheet.peaks) == {"memory"}
    assert "memory" not in specs.lookup(replace(UNKNOWN, memory_bus_bits=0)).peaks


def test_an_unknown_gpu_with_unknown_facts_has_no_peaks():
    sheet = specs.lookup(DeviceFacts("cuda", "NVIDIA X1", "cuda:0"))
    assert (sheet.gpu, sheet.match, dict(sheet.peaks)) == (None, "none", {})
    assert sheet.reason == (
        "no entry for 'NVIDIA X1' in harness/specs.toml, and no peak follows from its own facts; "
        "peak ratios are left empty. Add an entry."
    )


def test_an_unknown_compute_capability_has_no_rates():
    sheet = specs.lookup(replace(UNKNOWN, compute_capability=(6, 1)))
    assert set(sheet.peaks) == {"memory"}
    assert sheet.flop_per_clock_per_sm == {}


def test_an_exact_name_with_unknown_facts_says_what_was_not_confirmed():
    sheet = specs.lookup(DeviceFacts("cuda", "NVIDIA H200", "cuda:0"))
    assert sheet.match == "exact"
    assert sheet.reason == "matched by name; not confirmed: SM count, memory size"
    assert sheet.sm_count == 132


@pytest.mark.parametrize(
    ("name", "capability", "dtype", "rate"),
    [
        ("NVIDIA GeForce RTX 4090 D", (8, 9), "bf16", 512),
        ("NVIDIA GeForce RTX 4090 D", (8, 9), "int8", 2048),
        ("NVIDIA GeForce RTX 5070", (12, 0), "fp8", 1024),
        ("NVIDIA GeForce RTX 5070", (12, 0), "fp4", 4096),
        ("NVIDIA RTX 5000 Ada Generation", (8, 9), "bf16", 1024),
        ("NVIDIA L40G", (8, 9), "bf16", 1024),
        ("NVIDIA L40", (8, 9), "int8", 1024),
        ("NVIDIA H20 NVL16", (9, 0), "bf16", 1024),
        ("NVIDIA H200 X", (9, 0), "bf16", 4096),
    ],
)
def test_a_cut_chip_is_known_by_a_whole_word_of_its_name(name, capability, dtype, rate):
    assert specs.chip_rates(replace(UNKNOWN, name=name, compute_capability=capability))[dtype] == rate


def test_turing_geforce_has_no_tensor_rates():
    rates = specs.chip_rates(replace(UNKNOWN, name="NVIDIA GeForce GTX 1660", compute_capability=(7, 5)))
    assert "fp16" not in rates


@pytest.mark.parametrize(("name", "mig"), [("NVIDIA H200", True), ("NVIDIA H200 MIG 1g.18gb", False)])
def test_a_mig_instance_has_no_peaks_but_the_rates_of_its_sms(name, mig):
    sheet = specs.lookup(replace(H200, name=name, mig=mig, sm_count=16))
    assert (sheet.match, dict(sheet.peaks)) == ("none", {})
    assert sheet.reason.startswith("MIG instance: ")
    assert (sheet.sm_count, sheet.flop_per_clock_per_sm["bf16"]) == (16, 4096)


@pytest.mark.parametrize(
    "name",
    ["NVIDIA H100XM-80C", "NVIDIA H100-1-10C", "NVIDIA H100-1-10CME", "GRID A100-10Q", "GRID T4-1B4", "NVIDIA A16-4A"],
)
def test_a_virtual_gpu_has_no_peaks(name):
    """A slice with media engines ("-10CME") had the peak of the whole card's bus."""
    sheet = specs.lookup(replace(H200, name=name))
    assert (sheet.match, dict(sheet.peaks)) == ("none", {})
    assert sheet.reason.startswith("virtual GPU: ")


@pytest.mark.parametrize("name", ["NVIDIA H200 MIG 7g.141gb", "NVIDIA H100 80GB HBM3 MIG 1g.10gb+me"])
def test_the_full_bus_of_the_card_is_no_peak_of_its_slice(name):
    """NVML tells the card's own bus and clocks, also of the largest slice with all of its memory."""
    sheet = specs.lookup(replace(H200, name=name, mig=True))
    assert (sheet.gpu, sheet.match, dict(sheet.peaks)) == (None, "none", {})
    assert sheet.reason == f"MIG instance: {name!r} does not tell its share of the card, so it has no peaks"


def test_no_name_of_a_whole_card_is_taken_for_a_slice():
    for gpu in specs.gpus():
        for name in gpu.nvml_names:
            assert specs.lookup(DeviceFacts("cuda", name, "cuda:0")).match == "exact"


def test_a_cpu_has_no_peaks():
    sheet = specs.lookup(DeviceFacts("cpu", "AMD EPYC 9654", "cpu"))
    assert (sheet.gpu, sheet.match, dict(sheet.peaks)) == (None, "none", {})
    assert sheet.reason == "peaks are known for NVIDIA GPUs only; this device is a CPU"


def test_memory_shared_with_the_cpu_is_never_derived():
    """Jetson drivers report 0 or wrong memory clocks and buses."""
    facts = replace(UNKNOWN, name="Orin (nvgpu)", compute_capability=(8, 7), memory_clock_mhz=1300, memory_bus_bits=64)
    assert "memory" not in specs.lookup(facts).peaks


def test_a_superchip_has_a_host_link_in_place_of_pcie():
    facts = replace(H200, name="NVIDIA GH200 480GB", memory_bytes=97871 * MIB)
    assert specs.lookup(facts).peaks["host_link"].value == 450e9
    assert {gpu.name for gpu in specs.gpus() if gpu.value("nvlink_c2c.gb_per_s_both")} == {
        "GH200 96GB HBM3",
        "GH200 144GB HBM3e",
    }


def test_every_card_reaches_its_host_over_pcie_but_those_that_share_memory_or_a_package_with_it():
    others = {gpu.name for gpu in specs.gpus() if specs.why_no_pcie(PeakSheet(gpu.name, "exact"))}
    assert others == {
        "GH200 96GB HBM3",
        "GH200 144GB HBM3e",
        "GB200 (per GPU, NVL72/NVL4)",
        "GB300 (per GPU, NVL72)",
        "GB10 (DGX Spark)",
        "Jetson AGX Thor (T5000)",
        "Jetson AGX Orin 64GB",
    }
    assert specs.why_no_pcie(PeakSheet(None, "derived")) == ""


def test_links_that_are_up_carry_their_share_of_the_data_sheets_rate():
    sheet = specs.lookup(H200)
    some = specs.nvlink_peak(sheet, 12)
    assert (some.value, some.unit) == (300e9, "B")
    assert some.source.startswith("12 NVLinks that are up, of 18: ")
    assert some.source.endswith("NVLink 4, 18 links, one way.")
    assert specs.nvlink_peak(replace(sheet, gpu=None), 12) is None
    assert specs.nvlink_peak(replace(sheet, peaks={}), 12) is None


def test_nvlink_through_a_bridge_says_so():
    facts = replace(H200, name="NVIDIA A100 80GB PCIe", compute_capability=(8, 0), sm_count=108, memory_bytes=80 * GIB)
    assert specs.lookup(facts).peaks["nvlink"].source.endswith("NVLink 3, 12 links, through a bridge, one way.")


@pytest.mark.parametrize(
    ("generation", "lanes", "gb_per_s"),
    [(1, 16, 4.0), (3, 16, 15.75), (4, 16, 31.5), (5, 16, 63.0), (5, 8, 31.5), (6, 16, 121.0), (4, 1, 1.969)],
)
def test_a_pcie_link_is_counted_one_way_after_line_encoding(generation, lanes, gb_per_s):
    peak = specs.pcie_peak(generation, lanes)
    assert peak.value == pytest.approx(gb_per_s * 1e9, rel=1e-3)
    assert peak.unit == "B"
    assert f"PCIe Gen{generation} x{lanes}, one way" in peak.source


@pytest.mark.parametrize(("generation", "lanes"), [(None, 16), (5, None), (0, 16), (5, 0), (9, 16)])
def test_an_unknown_pcie_link_has_no_peak(generation, lanes):
    assert specs.pcie_peak(generation, lanes) is None
