"""The facts of a run: what must be in them, and what must never be."""

import getpass
import json
import os
import platform
import stat

import pytest

from harness.errors import ExitCode, HarnessError
from harness.model import to_plain
from harness.probe import environment, software_facts
from harness.probe.environment import card_hash, collect, site_key, site_key_hash
from harness.probe.nvml import open_nvml
from tests.doubles import FakeNvml

UUID = "1b4e28ba-2fa1-11d2-883f-0016d3cca427"
NO_GPU = "no NVIDIA GPU was measured"
ANSWERS = {
    "GetDriverVersion": "580.159.04",
    "GetNVMLVersion": b"13.580.159",
    "GetCudaDriverVersion_v2": 13000,
    "GetName": "NVIDIA H200",
    "GetEnforcedPowerLimit": 700_000,
    "GetPowerManagementDefaultLimit": 700_000,
    "GetPowerManagementLimitConstraints": [200_000, 700_000],
    "GetEccMode": [1, 0],
    "GetMigMode": [0, 0],
    "GetVirtualizationMode": 1,
    "GetMaxClockInfo": 1980,
    "GetPersistenceMode": 1,
    "GetRemappedRows": (1, 2, 0, 0),
    "GetUUID": f"GPU-{UUID}",
    "GetSerial": "1654922008131",
    "GetPciInfo": "00000000:1B:00.0",
}


@pytest.fixture(autouse=True)
def own_site(monkeypatch, tmp_path):
    """A site of its own, so that no test makes a key in somebody's home."""
    monkeypatch.setenv("OFPEAK_SITE_KEY", "key")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("OFPEAK_LABEL", raising=False)


def facts_of_gpu():
    nvml, _ = open_nvml(FakeNvml(ANSWERS))
    return collect(nvml, next(nvml.gpus()), UUID, "bound to 2 CPUs beside the GPU", "")


def facts_of_cpu():
    return collect(None, None, None, "the CPU itself is measured", NO_GPU)


# --- hashes and the site's key ---------------------------------------------------------------------------------------


def test_card_is_the_same_at_one_site_and_another_at_the_next():
    assert card_hash(b"a", UUID) == card_hash(b"a", UUID)
    assert card_hash(b"a", UUID) != card_hash(b"b", UUID)
    assert card_hash(b"a", UUID) != card_hash(b"a", UUID[::-1])


def test_card_is_twelve_digits_that_hold_nothing_of_the_uuid():
    assert len(card_hash(b"a", UUID)) == 12
    assert int(card_hash(b"a", UUID), 16) >= 0


def test_hash_of_the_key_is_no_card_and_not_the_key():
    assert site_key_hash(b"key") not in ("key", card_hash(b"key", ""), card_hash(b"key", UUID))


def test_key_is_taken_from_the_variable(tmp_path):
    assert site_key() == b"key"
    assert list(tmp_path.iterdir()) == []


def test_key_file_is_made_once_and_for_its_owner_alone(monkeypatch, tmp_path):
    monkeypatch.delenv("OFPEAK_SITE_KEY")
    first = site_key()
    path = tmp_path / "ofpeak" / "site.key"
    assert len(first) == 32
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert site_key() == first
    assert [p.name for p in path.parent.iterdir()] == ["site.key"]


def test_key_file_is_never_readable_by_others_even_while_it_is_made(monkeypatch, tmp_path):
    """The key was written with the umask's mode first and closed to others afterwards."""
    monkeypatch.delenv("OFPEAK_SITE_KEY")
    modes = []
    link = os.link
    monkeypatch.setattr(
        os, "link", lambda a, b: (modes.append(stat.S_IMODE(environment.Path(a).stat().st_mode)), link(a, b))
    )
    monkeypatch.setattr(environment.Path, "chmod", None)
    site_key()
    assert modes == [0o600]


def test_second_of_two_processes_keeps_the_key_of_the_first(monkeypatch, tmp_path):
    """Two workers that started at once each wrote a key, and named one card in two ways."""
    monkeypatch.delenv("OFPEAK_SITE_KEY")
    path = tmp_path / "ofpeak" / "site.key"
    path.parent.mkdir()
    path.write_text("the first one's\n")
    monkeypatch.setattr(environment.Path, "exists", lambda self: False)  # looked before the first had written
    assert site_key() == b"the first one's"


def test_folder_that_cannot_be_written_is_told_with_the_way_out(monkeypatch, tmp_path):
    """A home that cannot be written ended the run with a traceback."""
    monkeypatch.delenv("OFPEAK_SITE_KEY")
    (tmp_path / "ofpeak").write_text("a file where the folder should be")
    with pytest.raises(HarnessError, match=r"cannot keep the site's key \(.*\)\. Set OFPEAK_SITE_KEY\.") as told:
        site_key()
    assert told.value.exit_code == ExitCode.USAGE


def test_empty_key_file_is_refused(monkeypatch, tmp_path):
    """Hashes made with an empty key can be reversed from an inventory."""
    monkeypatch.delenv("OFPEAK_SITE_KEY")
    (tmp_path / "ofpeak").mkdir()
    (tmp_path / "ofpeak" / "site.key").write_text("\n")
    with pytest.raises(HarnessError, match="is empty"):
        site_key()


# --- what is never stored --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("facts", [facts_of_cpu, facts_of_gpu])
def test_only_listed_variables_are_stored(monkeypatch, facts):
    for name in ("AWS_SECRET_ACCESS_KEY", "NCCL_SOMETHING", "GITHUB_TOKEN", "HOSTNAME", "USER", "LOGNAME", "SLURM_JOB"):
        monkeypatch.setenv(name, f"planted-{name}")
    monkeypatch.setenv("NCCL_ALGO", "Ring")
    told = facts()
    assert "planted" not in json.dumps(to_plain(told))
    assert told["env.NCCL_ALGO"].value == "Ring"
    assert {name for name in told if name.startswith("env.")} <= {f"env.{name}" for name in software_facts.VARIABLES}


def test_no_host_user_serial_uuid_or_address_is_stored(monkeypatch):
    monkeypatch.setattr(platform, "node", lambda: "planted-node")
    monkeypatch.setattr(getpass, "getuser", lambda: "planted-user")
    facts = facts_of_gpu()
    told = json.dumps(to_plain(facts))
    for secret in ("planted", UUID, UUID[:8], "1654922008131", "1B:00.0", '"key"'):
        assert secret not in told, secret
    assert os.uname().nodename not in [fact.value for fact in facts.values()]


def test_boot_is_stored_as_a_hash():
    told = facts_of_cpu()["boot"]
    assert told.value is None or len(told.value) == 12


# --- what is stored --------------------------------------------------------------------------------------------------


def test_facts_of_a_gpu_are_in_our_units():
    told = facts_of_gpu()
    assert {name: told[name].value for name in ("driver", "nvml", "cuda_driver", "gpu", "power_limit_w")} == {
        "driver": "580.159.04",
        "nvml": "13.580.159",
        "cuda_driver": "13.0",
        "gpu": "NVIDIA H200",
        "power_limit_w": pytest.approx(700),
    }
    assert (told["power_limit_least_w"].value, told["power_limit_most_w"].value) == (200, 700)
    assert (told["ecc"].value, told["ecc_after_reboot"].value, told["mig"].value) == (True, False, False)
    assert (told["virtualization"].value, told["remapped_rows"].value) == ("passthrough", 3)
    assert told["card"].value == card_hash(b"key", UUID)
    assert told["site_key"].value == site_key_hash(b"key")


def test_fact_that_nvml_does_not_tell_is_none_with_its_words():
    assert (facts_of_gpu()["vbios"].value, facts_of_gpu()["vbios"].status) == (None, "Not Supported")


def test_machine_without_a_gpu_says_so_for_each_fact_of_it():
    told = facts_of_cpu()
    for name in ("card", "driver", "power_limit_w", "ecc"):
        assert (told[name].value, told[name].status) == (None, NO_GPU)


def test_label_is_the_operators_own(monkeypatch):
    assert facts_of_cpu()["label"].status == "OFPEAK_LABEL is not set"
    monkeypatch.setenv("OFPEAK_LABEL", "rack 7")
    assert (facts_of_cpu()["label"].value, facts_of_cpu()["label"].role) == ("rack 7", "informative")


def test_facts_of_the_card_its_links_and_the_driver_stand_side_by_side():
    told = facts_of_gpu()
    assert {"driver_branch", "nvlink_links", "fabric_state", "pcie_generation_now", "suite_commit", "shm_mib"} <= set(
        told
    )
    assert "nvlink_links" not in facts_of_cpu()


@pytest.mark.parametrize("facts", [facts_of_cpu, facts_of_gpu])
def test_facts_that_must_match_do_not_move_between_two_readings(facts):
    first, second = ({n: f.value for n, f in facts().items() if f.role == "match"} for _ in range(2))
    assert first == second


@pytest.mark.parametrize("facts", [facts_of_cpu, facts_of_gpu])
def test_every_unknown_fact_has_a_reason_and_json_can_hold_them_all(facts):
    told = facts()
    assert json.loads(json.dumps(to_plain(told), allow_nan=False)).keys() == told.keys()
    assert [name for name, fact in told.items() if fact.value is None and fact.status in ("", "ok")] == []
