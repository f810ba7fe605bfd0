"""What is in the environment of a run stays there: only variables that change a measurement are ever stored."""

from pathlib import Path

import pytest

from harness.cli.app import exit_status
from tests.process.processes import end_of, start_python

TOKEN = "tk-5d41402abc4b2a76b9719d911017c592"
# Names that a careless prefix match would take along, and names that hold secrets everywhere.
PLANTED = (
    *("HF_TOKEN", "GITHUB_TOKEN", "AWS_SECRET_ACCESS_KEY", "NCCL_SECRET", "CUDA_TOKEN", "TORCH_TOKEN", "TRITON_TOKEN"),
    *("OFPEAK_TOKEN", "OFPEAK_SITE_KEY", "SLURM_TOKEN", "NVIDIA_TOKEN", "PYTORCH_TOKEN", "OMP_TOKEN", "LS_COLORS"),
)


def test_a_token_in_the_environment_is_in_no_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """Run file, journal, log, and every way to print them, of a real run of one case."""
    for name in PLANTED:
        monkeypatch.setenv(name, TOKEN)
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    folder = tmp_path / "set"
    options = ("--device", "cpu", "--profile", "smoke", "--only", "copy/*torch*", "--out", folder)
    left = end_of(start_python("-m", "harness", "run", *options), 300.0)
    assert (left.code, left.err) == (0, "")
    written = (folder / "run-001.json").read_text()
    assert '"env.OMP_NUM_THREADS":{"value":"2"' in written  # variables are looked at
    printing: tuple[tuple[object, ...], ...] = (
        *(("show", folder, "--format", form) for form in ("text", "md")),
        ("compare", folder, folder / "run-001.json", "--label", "a,b", "--no-cache", "--format", "json"),
        ("report", folder, "-o", tmp_path / "page.html"),
        *(("export", folder, "--format", form, "-o", tmp_path / f"runs.{form}") for form in ("csv", "openmetrics")),
    )
    for arguments in printing:
        assert exit_status([str(argument) for argument in arguments]) == 0
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {path.name for path in files} >= {"run-001.json", "run-001.jsonl", "run-001.log", "page.html", "runs.csv"}
    assert not [path for path in files if TOKEN.encode() in path.read_bytes()]
    assert TOKEN not in left.out + "".join(capsys.readouterr())
