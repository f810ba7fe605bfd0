"""The job files under deploy/ call what exists, and say the same number everywhere. CI runs the Slurm one for real."""

import re
import subprocess
from pathlib import Path

import pytest

from tests.test_examples import options_of

DEPLOY = Path(__file__).parents[1] / "deploy"
SLURM, KUBERNETES = DEPLOY / "slurm" / "ofpeak.sbatch", DEPLOY / "kubernetes" / "job.yaml"


def words_of(path: Path) -> list[str]:
    """The command's words, whether they stand in a line or one under another."""
    code = re.sub(r"#.*", "", path.read_text())
    words = [word for word in re.findall(r"(?:^|\s)(?:- )?((?:--?|torch|harness)[^\s]*|run)(?=\s|$)", code) if word]
    return words[words.index("torch.distributed.run") :]


def options_in(words: list[str]) -> set[str]:
    return {word.partition("=")[0] for word in words if word.startswith("--")}


@pytest.mark.parametrize("path", [SLURM, KUBERNETES], ids=["slurm", "kubernetes"])
def test_job_calls_torchrun_and_the_command_with_options_that_exist(path: Path):
    from torch.distributed.run import get_args_parser

    words = words_of(path)
    split = words.index("harness")
    assert words[split + 1] == "run"
    known = set(get_args_parser()._option_string_actions)
    of_torchrun = options_in(words[:split])
    assert of_torchrun == {"--nnodes", "--nproc-per-node", "--node-rank", "--master-addr", "--master-port"}
    assert of_torchrun <= known
    end = next((i for i, word in enumerate(words) if word.startswith("--cpu-bind")), len(words))
    of_run = options_in(words[split:end])
    assert of_run >= {"--only", "--out"}
    assert of_run <= options_of("run")


def test_kubernetes_job_says_hosts_and_gpus_the_same_everywhere():
    text = KUBERNETES.read_text()
    hosts = re.findall(r"(?:completions: |parallelism: |--nnodes=)(\d+)", text)
    gpus = re.findall(r"(?:nvidia\.com/gpu: |--nproc-per-node=)(\d+)", text)
    assert hosts == ["2"] * 3
    assert gpus == ["8"] * 2


def test_kubernetes_job_has_shared_memory_locked_memory_and_whole_cpus():
    text = KUBERNETES.read_text()
    assert re.search(r"- name: shm .*\n +emptyDir:\n +medium: Memory\n", text)
    assert re.search(r"mountPath: /dev/shm\n", text)
    assert re.search(r"add: \[IPC_LOCK\]", text)
    assert re.search(r'cpu: "\d+"\n', text)


def test_slurm_job_is_alone_and_takes_the_hosts_own_limits():
    text = SLURM.read_text()
    for option in ("--exclusive", "--mem=0", "--ntasks-per-node=1", "--propagate=NONE"):
        assert f"#SBATCH {option}\n" in text
    for option in ("--cpu-bind=none", "--propagate=NONE", "--kill-on-bad-exit=0"):
        assert re.search(rf"^srun .*{option}", text, re.MULTILINE)
    checked = subprocess.run(["bash", "-n", str(SLURM)], capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stderr) == (0, "")
