"""What the doctor finds in a machine, and what it does not dare to judge."""

import pytest

from harness.doctor import Diagnosis, examine
from harness.machine import read_machine
from tests.hand_made_machines import answer, gpu, machine


def found(diagnosis: Diagnosis) -> list[tuple[str, str]]:
    return [(finding.level, finding.what) for finding in diagnosis.findings]


def of_gpu(changes=None, load=None, declared_mhz=None, **others):
    """The findings in a machine with one changed GPU."""
    return examine(machine(gpu(changes, load, **others)), declared_mhz)


def of_host(gpus=1, **others):
    return examine(machine(*(gpu() for _ in range(gpus)), **others))


def limited(watts):
    return {"power_limit_w": watts, "power_limit_requested_w": watts}


def only(diagnosis):
    (finding,) = diagnosis.findings
    return finding


def test_a_fit_machine_has_no_finding_and_nothing_unjudged():
    diagnosis = of_host()
    assert (diagnosis.findings, diagnosis.not_judged, diagnosis.is_fit) == ((), (), True)


# --- one GPU ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "level", "what"),
    [
        (limited(500.0), "key", "power limit 500 W, default 700 W (71.4 %)"),
        (limited(690.0), "key", "power limit 690 W, default 700 W (98.6 %)"),
        (limited(750.0), "key", "power limit 750 W, default 700 W (107.1 %)"),
        ({"ecc": False, "ecc_after_reboot": False}, "key", "ECC is off, cards are delivered with it on"),
        ({"ecc_after_reboot": False}, "blocker", "ECC is on and will be off after a reboot"),
        ({"ecc_uncorrected": 1}, "blocker", "1 uncorrected ECC error since the driver was loaded, none may be"),
        (
            {"ecc_uncorrected_lifetime": 3},
            "note",
            "3 uncorrected ECC errors in the card's life, none since the driver was loaded",
        ),
        ({"sram_threshold_exceeded": True}, "blocker", "SRAM errors are above the threshold"),
        ({"remapped_rows_pending": True, "remapped_rows": 2}, "blocker", "a row remapping is pending, 2 done"),
        ({"remapped_rows_failed": True, "remapped_rows": 8}, "blocker", "a row remapping failed after 8"),
        ({"retired_pages_pending": True, "retired_pages": 5}, "blocker", "page retirements are pending, 5 done"),
        ({"repair_pending": True}, "blocker", "a repair of the memory or a TPC is pending"),
        ({"mig": True, "mig_after_reset": True}, "key", "MIG is on"),
        ({"mig_after_reset": True}, "blocker", "MIG is off and will be on after a reset"),
        ({"compute_mode": 3}, "note", "compute mode is exclusive"),
        ({"compute_mode": 2}, "blocker", "compute mode is prohibited"),
        ({"persistence": False}, "note", "persistence mode is off"),
        ({"clock_events": "thermal_hw"}, "blocker", "thermal slowdown is active at 30 °C, it slows down at 90 °C"),
        ({"clock_events": "brake_hw"}, "blocker", "the power brake is active"),
        ({"temperature_c": 75}, "key", "75 °C at rest, 15 °C below the slowdown"),
        ({"temperature_margin_c": 12}, "key", "30 °C at rest, 12 °C below the slowdown"),
        ({"temperature_c": 70, "threshold_slowdown_c": None}, "key", "70 °C at rest, 65 °C is much"),
        (
            {"gpu_cpus_allowed": 0},
            "key",
            "this process may use 0 of the 64 CPUs beside the GPU (node 0); its cpuset is 0-63",
        ),
        ({"pcie_generation_gpu": 6}, "note", "PCIe gen5 is the most that this host gives, the card could do gen6"),
        ({"nvlink_active": 17}, "key", "17 of 18 NVLinks are up"),
        (
            {"nvlink_replays": 4, "nvlink_crc_errors": 1},
            "key",
            "NVLink errors: 4 × replay, 1 × CRC error since the driver was loaded, none is usual",
        ),
        ({"fabric_state": "not started"}, "note", "the NVSwitch fabric is 'not started', it must be 'completed'"),
        ({"fabric_health": "degraded bandwidth"}, "key", "the NVSwitch fabric is not healthy: degraded bandwidth"),
        ({"neighbours_busy": 2, "neighbours_power_most_w": 640.0}, "note",
         "2 of 7 neighbouring GPUs at work, drawing up to 640 W"),
        ({"gpus_lost": 1}, "key", "1 GPU of this host without an answer"),
        ({"virtualization": "vgpu"}, "note", "virtualization: vgpu"),
        ({"application_memory_clock_mhz": 1593}, "key", "application memory clock 1593 MHz, maximum 3201 MHz"),
        ({"application_sm_clock_mhz": 1410}, "key", "application SM clock 1410 MHz, maximum 1980 MHz"),
        ({"customer_boost_sm_clock_mhz": 1755}, "key", "SM clock may boost to 1755 MHz, maximum 1980 MHz"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_gpu_is_one_finding_with_both_numbers(changes, level, what):
    finding = only(of_gpu(changes))
    assert (finding.level, finding.what) == (level, what)
    assert finding.cause.endswith(".")
    assert finding.remedy.endswith(".")


def test_a_limit_that_something_else_holds_is_not_blamed_on_the_operator():
    finding = only(of_gpu({"power_limit_w": 600.0}))
    assert finding.cause.startswith("700 W are requested: something above the operator's setting holds it")
    assert "-pl" not in finding.remedy


def test_a_limit_below_95_percent_has_words_of_its_own():
    far, near = (only(of_gpu(limited(watts))) for watts in (664.0, 666.0))
    assert "by more than 5 %" in far.cause
    assert "a little" in near.cause


def test_processes_are_counted_before_the_doctor_comes():
    finding = only(of_gpu(processes=2, processes_mib=31744))
    assert (finding.level, finding.what) == (
        "blocker",
        "2 other processes on the GPU and 31744 MiB of its memory, none may be",
    )
    assert only(of_gpu({"other_processes": 1}, processes=None, processes_mib=None)).what == (
        "1 other process on the GPU, none may be"
    )


def test_a_target_at_its_factory_default_is_no_setting():
    assert of_gpu({"application_sm_clock_mhz": 1312, "application_sm_clock_default_mhz": 1312}).findings == ()


def test_pcie_is_judged_under_load_and_names_generation_and_lanes():
    finding = only(of_gpu({"pcie_replays": 12}, {"pcie_generation": 4, "pcie_lanes": 8}))
    assert (finding.level, finding.what) == ("key", "PCIe link gen4 x8 under load, gen5 x16 possible")
    assert finding.cause.endswith("12 replays so far.")


def test_thermal_slowdown_that_shows_only_under_load_is_found():
    assert only(of_gpu(load={"events": ["thermal_sw"]})).what.startswith("thermal slowdown is active")


def test_a_slice_is_told_and_its_siblings_must_rest():
    slice_facts = {"mig": True, "mig_after_reset": True, "mig_compute_slices": 1, "mig_profile": "1g.18gb"}
    quiet = only(of_gpu({**slice_facts, "mig_sibling_processes": 0}))
    assert (quiet.level, quiet.what) == ("key", "a MIG slice (1g.18gb), not the card")
    loaded = of_gpu({**slice_facts, "mig_sibling_processes": 2})
    assert found(loaded)[0] == ("blocker", "2 processes on sibling slices, none may be")
    unknown = of_gpu({**slice_facts, "mig_sibling_processes": None})
    assert [one.what for one in unknown.not_judged] == ["load on sibling slices"]


# --- clocks ----------------------------------------------------------------------------------------------------------


LOCKED = {"sm_clock_least_mhz": 1410, "sm_clock_most_mhz": 1410}


def test_a_flat_clock_below_the_maximum_is_probably_locked():
    finding = only(of_gpu(load=LOCKED))
    assert (finding.level, finding.what) == ("key", "SM clock stood at 1410 MHz under load, maximum 1980 MHz")
    assert "clocks=locked:1410" in finding.remedy


@pytest.mark.parametrize(
    "load",
    [
        {"sm_clock_least_mhz": 1410, "sm_clock_most_mhz": 1500},  # it moves
        {**LOCKED, "events": ["power_cap"]},  # something else explains it
        {"sm_clock_least_mhz": 1965, "sm_clock_most_mhz": 1965},  # one step
    ],
)
def test_a_clock_that_moves_or_has_a_reason_is_not_called_locked(load):
    assert of_gpu(load=load).findings == ()


def test_a_memory_clock_below_its_maximum_shows_under_load():
    finding = only(of_gpu(load={"memory_clock_mhz": 2619}))
    assert (finding.level, finding.what) == ("key", "memory clock 2619 MHz under load, maximum 3201 MHz")
    assert only(of_gpu({"application_memory_clock_mhz": 2619}, {"memory_clock_mhz": 2619})).what.startswith(
        "application"
    )


def test_a_declared_clock_is_not_complained_of():
    changes = {"application_sm_clock_mhz": 1410, "customer_boost_sm_clock_mhz": 1410}
    assert of_gpu(changes, LOCKED, declared_mhz=1410).findings == ()


def test_a_declaration_says_nothing_of_the_memory():
    assert found(of_gpu({"application_memory_clock_mhz": 1593}, LOCKED, declared_mhz=1410)) == [
        ("key", "application memory clock 1593 MHz, maximum 3201 MHz")
    ]


def test_a_declaration_that_the_load_refutes_stands_against_measuring():
    finding = only(of_gpu(declared_mhz=1410))
    assert (finding.level, finding.what) == (
        "blocker",
        "1410 MHz declared, the SM clock reached 1980 MHz under load",
    )


# --- driver and torch ------------------------------------------------------------------------------------------------


def test_a_mismatch_of_driver_and_library_is_a_blocker_in_its_own_words():
    told = "the NVIDIA driver's kernel module and its libraries are of different versions (NVML code 18)."
    finding = only(examine(read_machine(answer(gpus=[], driver_problem=told))))
    assert (finding.level, finding.cause) == ("blocker", f"T{told[1:]}")


def test_nvml_that_does_not_answer_beside_a_gpu_is_told():
    diagnosis = examine(machine(gpu(load={"missing": "x"}), reason="nvidia-ml-py is not installed"))
    assert found(diagnosis)[0] == ("key", "a GPU is here, and NVML does not answer")


@pytest.mark.parametrize(
    ("torch", "capability", "what", "remedy"),
    [
        (
            {"version": "", "cuda": "", "problem": "/usr/bin/python3 lacks torch"},
            [9, 0],
            "no torch",
            "Install a torch build for CUDA 13.0 ('cu130'), or name another PYTHON=.",
        ),
        (
            {"version": "2.13.0+cpu", "cuda": ""},
            [9, 0],
            "torch 2.13.0+cpu is built without CUDA",
            "Install a torch build for CUDA 13.0 ('cu130').",
        ),
        (
            {"architectures": ["sm_80", "sm_90"]},
            [10, 0],
            "torch 2.11.0+cu130 has code for sm_80 sm_90, the GPU is sm_100",
            "Install a torch build for CUDA 12.8 or later ('cu128', 'cu130'): the first for Blackwell.",
        ),
        (
            {},
            [7, 0],
            "torch 2.11.0+cu130 has code for sm_80 sm_90 sm_100, the GPU is sm_70",
            "Install a torch build for CUDA 12.6 ('cu126'): later ones have no code for GPUs before Turing.",
        ),
        (
            {"problem": "CUDA error 802: system not yet initialized"},
            [9, 0],
            "torch 2.11.0+cu130 cannot use the GPU",
            "Start nvidia-fabricmanager of the driver's version.",
        ),
    ],
)
def test_a_torch_that_cannot_use_the_gpu_is_a_blocker_with_the_build_that_fits(torch, capability, what, remedy):
    finding = only(examine(machine(gpu(compute_capability=capability), torch=torch)))
    assert (finding.level, finding.what, finding.remedy) == ("blocker", what, remedy)


def test_a_driver_too_old_for_torchs_cuda_is_a_blocker_that_explains_the_rest():
    host = {"driver": "550.54.15", "cuda_driver": "12.4"}
    diagnosis = examine(machine(gpu(), host=host, torch={"problem": "The NVIDIA driver on your system is too old"}))
    finding = only(diagnosis)
    assert finding.what == "driver 550.54.15 offers CUDA 12.4, torch 2.11.0+cu130 is built for CUDA 13.0"
    assert finding.remedy == "Upgrade the driver to 580 or later, or install a torch build for CUDA 12 ('cu126')."


def test_a_newer_minor_version_of_cuda_is_a_note():
    torch = {"version": "2.11.0+cu128", "cuda": "12.8"}
    diagnosis = examine(machine(gpu(), host={"driver": "550.54.15", "cuda_driver": "12.4"}, torch=torch))
    assert [finding.level for finding in diagnosis.findings] == ["note"]


@pytest.mark.parametrize(
    ("architectures", "capability", "levels"),
    [
        (["sm_80"], [8, 6], []),  # machine code runs on later minor versions
        (["sm_86"], [8, 0], ["blocker"]),
        (["sm_90a"], [9, 0], []),
        (["sm_100a"], [10, 3], ["blocker"]),
        (["sm_100f"], [10, 3], []),
        (["sm_90", "compute_90"], [12, 0], ["key"]),  # PTX that the driver compiles
        (["sm_90", "nonsense"], [9, 0], []),
    ],
)
def test_which_machine_code_runs_where(architectures, capability, levels):
    diagnosis = examine(machine(gpu(compute_capability=capability), torch={"architectures": architectures}))
    assert [finding.level for finding in diagnosis.findings] == levels


# --- the host --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("host", "gpus", "level", "what"),
    [
        ({"shm_mib": 64}, 1, "note", "/dev/shm holds 64 MiB, collectives want 1024 MiB"),
        ({"shm_mib": 64}, 2, "blocker", "/dev/shm holds 64 MiB, collectives want 1024 MiB"),
        ({"shm_mib": 512}, 2, "note", "/dev/shm holds 512 MiB, collectives want 1024 MiB"),
        ({"memlock_mib": 8}, 1, "note", "memlock limit 8 MiB, NVIDIA's images ask for none"),
        ({"exporters": "dcgm-exporter"}, 1, "key", "polling the GPU meanwhile: dcgm-exporter"),
        ({"hypervisor": True}, 1, "note", "virtualization: hypervisor"),
        ({"confidential_computing": True}, 1, "key", "confidential computing is on"),
        ({"fabric_manager_version": "575.57.08"}, 1, "note", "fabric manager 575.57.08, driver 580.159.04"),
        ({"fabric_manager_version": "575.57.08"}, 2, "blocker", "fabric manager 575.57.08, driver 580.159.04"),
    ],
)
def test_what_is_wrong_with_the_host(host, gpus, level, what):
    finding = only(of_host(gpus, host=host))
    assert (finding.level, finding.what) == (level, what)
    assert finding.remedy.endswith(".")


def test_a_site_key_without_a_place_is_a_blocker():
    finding = only(of_host(site_key_problem="cannot keep the site's key (read-only). Set OFPEAK_SITE_KEY."))
    assert (finding.level, finding.what) == ("blocker", "no place for the site's key")


def test_a_container_hides_who_polls_from_outside():
    (unjudged,) = of_host(host={"container": "docker"}).not_judged
    assert unjudged.what == "tools that poll from outside"
    assert unjudged.why == "the container (docker) hides the host's processes"


def test_small_shared_memory_is_enough_for_one_gpu():
    assert of_host(1, host={"shm_mib": 512}).findings == ()


@pytest.mark.parametrize(
    "changes", [{"nvlink_active": 17}, {"fabric_state": "not started"}, {"fabric_health": "incorrect configuration: x"}]
)
def test_links_between_gpus_block_where_there_are_several(changes):
    diagnosis = examine(machine(gpu(changes), gpu()))
    assert [(f.level, f.gpus) for f in diagnosis.findings] == [("blocker", (0,))]


def test_a_fabric_that_is_not_set_up_blocks_nobody_who_still_reaches_all_others():
    """A virtual machine's fabric is set up by its host, and may never call itself completed."""
    changes = {"fabric_state": "in progress", "peers_over_nvlink": 7}
    diagnosis = examine(machine(gpu(changes), gpu(changes)))
    assert [(f.level, f.gpus) for f in diagnosis.findings] == [("key", (0, 1))]


# --- several GPUs ----------------------------------------------------------------------------------------------------


def test_what_gpus_have_in_common_is_said_once():
    diagnosis = examine(machine(gpu(limited(500.0)), gpu({"ecc_after_reboot": False}), gpu(limited(500.0))))
    assert [(f.level, f.gpus) for f in diagnosis.findings] == [("blocker", (1,)), ("key", (0, 2))]


# --- what is unknown -------------------------------------------------------------------------------------------------


def test_a_gpu_that_tells_nothing_is_not_called_fine():
    silent = {"name": "NVIDIA H200", "load": {"missing": "torch sees no device"}}
    diagnosis = examine(machine(silent))
    assert diagnosis.findings == ()
    assert {one.what for one in diagnosis.not_judged} == {
        "neighbouring GPUs",
        "other processes",
        "torch's code for this GPU",
        "compute mode",
        "persistence mode",
        "power limit",
        "ECC",
        "ECC errors",
        "row remapping",
        "temperature at rest",
        "PCIe link under load",
        "NUMA node of the GPU",
        "NVLink",
        "NVSwitch fabric",
        "locked clocks",
        "memory clock",
        "MIG",
    }


def test_a_host_that_tells_nothing_is_not_called_fine():
    diagnosis = examine(read_machine(answer(gpu({"virtualization": None}), facts={})))
    assert diagnosis.findings == ()
    assert {one.what for one in diagnosis.not_judged} == {
        "driver against torch's CUDA",
        "/dev/shm",
        "memlock limit",
        "tools that poll the GPU",
        "virtualization",
        "confidential computing",
        "NUMA node of the GPU",
    }


def test_unknown_says_nvmls_own_words():
    (unjudged,) = of_gpu({"ecc": None}).not_judged
    assert (unjudged.what, unjudged.why) == ("ECC", "Not Supported")


def test_a_machine_with_one_node_needs_no_numa():
    assert examine(machine(gpu({"gpu_cpus": None}), host={"numa_nodes": 1})).not_judged == ()


def test_a_gpu_without_nvlink_or_fabric_is_fine():
    diagnosis = of_gpu({"nvlink_links": 0, "nvlink_active": None, "fabric_state": "not supported"})
    assert (diagnosis.findings, diagnosis.not_judged) == ((), ())
