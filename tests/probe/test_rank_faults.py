"""What is said of ranks that go wrong, without any."""

from pathlib import Path

from harness.probe.rank_faults import (
    other_code,
    shared_memory_free_bytes,
    shared_memory_hint,
    source_hash,
    without_addresses,
)

CODE = {"ofpeak": "0.1.0", "source": "aa", "torch": "2.13.0"}


def test_rank_with_another_version_is_named_with_both():
    assert other_code([CODE, CODE]) == ""
    assert other_code([CODE, CODE, {**CODE, "torch": "2.11.0"}]) == (
        "rank 2 of 3 runs other code: torch 2.11.0, rank 0 has 2.13.0. "
        "Install the same checkout and environment on every host."
    )
    assert "rank 1 of 2 runs other code: nccl 2.28.9, rank 0 has none" in other_code([CODE, {**CODE, "nccl": "2.28.9"}])


def test_addresses_that_libraries_name_are_left_out_and_versions_and_places_stay():
    assert without_addresses("Connection closed by peer [10.1.2.3]:4711 (pair.cc:553)") == (
        "Connection closed by peer [address]:4711 (pair.cc:553)"
    )
    assert without_addresses("connect to 192.168.0.12<40000> failed") == "connect to address<40000> failed"
    assert without_addresses("peer [fe80::1%eth0]:80, [::1]:9") == "peer [address]:80, [address]:9"
    for kept in ("NCCL 2.28.9, driver 580.159.04", "[rank 1] (a.py:12)", "[W1130 19:08:24.976] at 10:33"):
        assert without_addresses(kept) == kept


def test_source_hash_changes_with_a_module_and_with_its_name(tmp_path: Path):
    (tmp_path / "kernels").mkdir()
    module = tmp_path / "kernels" / "a.py"
    module.write_text("x = 1\n")
    first = source_hash(tmp_path)
    module.write_text("x = 2\n")
    second = source_hash(tmp_path)
    module.rename(tmp_path / "kernels" / "b.py")
    assert len({first, second, source_hash(tmp_path)}) == 3


def test_shared_memory_is_a_hint_only_where_it_is_short():
    assert shared_memory_hint(None) == shared_memory_hint(2**30) == ""
    assert shared_memory_hint(3 * 2**20) == (
        "/dev/shm has 3 MiB free, NCCL may need more than 64 MiB: start the container with --ipc=host or --shm-size=1g"
    )


def test_shared_memory_that_is_not_there_is_unknown(tmp_path: Path):
    assert shared_memory_free_bytes(tmp_path / "none") is None
    assert shared_memory_free_bytes(tmp_path)
