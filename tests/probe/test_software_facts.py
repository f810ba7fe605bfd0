"""The software as facts: the checkout, what is loaded, numerics."""

import subprocess

import pytest

from harness.probe import software_facts
from harness.probe.software_facts import checkout_facts, cuda_version


def git(folder, *arguments):
    identity = ("-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false")
    subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def checkout(tmp_path):
    git(tmp_path, "init", "-q")
    (tmp_path / "kernels").mkdir()
    for name in ("kernels/copy.py", "README.md"):
        (tmp_path / name).write_text("1")
        git(tmp_path, "add", name)
    git(tmp_path, "commit", "-q", "-m", "planted message", "--no-verify")
    return tmp_path


def test_a_clean_checkout_tells_its_commit(checkout):
    told = checkout_facts(checkout)
    assert len(told["suite_commit"].value) == 40
    assert (told["suite_modified"].value, told["suite_modified"].role) == (False, "informative")


def test_a_changed_file_that_measures_is_told_and_no_other(checkout):
    (checkout / "kernels/run.json").write_text("{}")
    (checkout / "README.md").write_text("2")
    assert checkout_facts(checkout)["suite_modified"].value is False
    (checkout / "kernels/copy.py").write_text("2")
    assert checkout_facts(checkout)["suite_modified"].value is True


def test_an_installed_wheel_is_no_checkout_even_below_one(checkout):
    (checkout / "inner").mkdir()
    told = checkout_facts(checkout / "inner")
    assert {(fact.value, fact.status) for fact in told.values()} == {(None, "not a checkout")}


def test_a_git_that_refuses_leaves_no_path_in_the_reason(tmp_path):
    (tmp_path / ".git").mkdir()
    told = checkout_facts(tmp_path)
    assert {(fact.value, fact.status) for fact in told.values()} == {(None, "git does not tell (CalledProcessError)")}


def test_a_library_that_is_not_loaded_is_unknown():
    with pytest.raises(OSError, match="libnothing is not loaded"):
        software_facts._library("nothing")


def test_a_loaded_library_is_found_in_the_map_and_opened(tmp_path, monkeypatch):
    maps = tmp_path / "maps"
    maps.write_text("7f-80 r-xp 0 08:01 5    /planted/home/libcublas.so.13\n")
    monkeypatch.setattr(software_facts, "_MAPS", maps)
    with pytest.raises(OSError, match=r"^libcublas cannot be opened again$"):
        software_facts._library("cublas")


def test_properties_of_a_library_are_a_version():
    class Library:
        def cublasGetProperty(self, which, pointer):  # noqa: N802  # cuBLAS's own name
            pointer._obj.value = (13, 1, 0)[which]
            return 0

        def cudaRuntimeGetVersion(self, pointer):  # noqa: N802  # CUDA's own name
            pointer._obj.value = 12080
            return 0

    assert software_facts._property(Library(), "cublasGetProperty") == "13.1.0"
    assert software_facts._runtime_version(Library()) == "12.8"


def test_cudas_numbers_as_people_write_them():
    assert [cuda_version(n) for n in (13000, 12080, 11040)] == ["13.0", "12.8", "11.4"]


def test_numerics_and_versions_are_match_facts():
    told = software_facts.software_facts({"NCCL_ALGO": "Ring", "NCCL_SECRET": "planted"})
    for name in ("torch", "matmul_allow_tf32", "cudnn_benchmark", "cublas_loaded"):
        assert told[name].role == "match", name
    assert told["env.NCCL_ALGO"].value == "Ring"
    assert "env.NCCL_SECRET" not in told
    assert [name for name, fact in told.items() if fact.value is None and fact.status in ("", "ok")] == []
