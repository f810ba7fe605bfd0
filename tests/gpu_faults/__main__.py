"""`python -m tests.gpu_faults OUT`: break runs on this machine's GPU as broken nodes do, and tell what was kept.

Three to four minutes on one H200 (eight with `--profile quick`). It changes no setting of the card and needs what
measuring needs. OUT gets `faults.md` and the sets; the exit code is 1 if anything came out otherwise than
docs/failures.md says.
"""

import argparse
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from harness.probe.nvml import Gpu, open_nvml
from tests.gpu_faults.bench_gpu_faults import FAULTS, HUNG_S
from tests.gpu_faults.story import RunFile, Said, Step, finished_in, read_run_file, started_in, to_markdown
from tests.process.processes import Process, end_of, start, start_python, wait_until, worker_of

HERE = Path(__file__).parent
SHARED_MEMORY = Path("/dev/shm")
MARK = "OFPEAK_TEST_MARK"
DEVICES = {"auto": "tests.gpu_faults.devices.ImpatientCuda", "cpu": "tests.gpu_faults.devices.ImpatientCpu"}
# What each failure is to be called, on a GPU and on a CPU in its place.
NAMED = {
    "auto": {
        "device_memory": "OutOfMemoryError: CUDA out of memory",
        "host_memory": "can't allocate memory",
        "illegal_address": "an illegal memory access was encountered",
        "hung_kernel": "timed out after ",
    },
    "cpu": {
        "device_memory": "can't allocate memory",
        "host_memory": "can't allocate memory",
        "illegal_address": "died by signal 11 (SIGSEGV)",
        "hung_kernel": "timed out after ",
    },
}
# A lost context ends its worker, and so does a hang; exhausted memory does not.
ENDS_ITS_WORKER = ("illegal_address", "hung_kernel")
_BEGIN_LIMIT_S = 240.0
_END_LIMIT_S = 400.0
_GONE_LIMIT_S = 60.0
# Into the case: past its first launches, before its end.
_INTO_CASE_S = {"auto": 0.5, "cpu": 0.0}


def shared_memory() -> set[str]:
    return {path.name for path in SHARED_MEMORY.iterdir()} if SHARED_MEMORY.is_dir() else set()


@dataclass
class Machine:
    """Where the runs take place, and what was there before them."""

    device: str
    base: Path
    temporary: Path
    gpus: Sequence[Gpu]
    why_no_gpu: str = ""
    mark: str = field(default_factory=lambda: secrets.token_hex(8))
    shared_before: set[str] = field(default_factory=shared_memory)
    gpu_before: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        self.gpu_before = self.on_gpu()

    @property
    def environment(self) -> dict[str, str]:
        """What every process of a run inherits, and is known by afterwards."""
        return {MARK: self.mark, "TMPDIR": str(self.temporary)}

    def on_gpu(self) -> tuple[int, int] | None:
        """How many processes compute on the GPUs, and how many MiB are used, as NVML says."""
        processes = [gpu.ask("GetComputeRunningProcesses").value for gpu in self.gpus]
        memory = [gpu.ask("GetMemoryInfo").value for gpu in self.gpus]
        if not self.gpus or None in processes or None in memory:
            return None
        return sum(map(len, processes)), sum(told.used for told in memory) // 2**20

    def living(self) -> list[int]:
        """Processes of these runs that still live; a zombie has no environment any more."""
        found = []
        for path in Path("/proc").glob("[0-9]*/environ"):
            try:
                content = path.read_bytes()
            except OSError:
                continue
            if f"{MARK}={self.mark}".encode() in content.split(b"\0"):
                found.append(int(path.parent.name))
        return found

    def is_clean(self) -> bool:
        """Whether all is as it was before the first run; memory of the GPU may be told a little later."""
        now = self.on_gpu()
        is_card_free = now is None or self.gpu_before is None or now[0] <= self.gpu_before[0]
        return not self.living() and not list(self.temporary.iterdir()) and is_card_free

    def left_behind(self, step: Step) -> None:
        """Wait until everything is gone, and say what is not."""
        try:
            wait_until(self.is_clean, "everything is gone", _GONE_LIMIT_S)
        except AssertionError:
            step.problems.append(f"something is left after {_GONE_LIMIT_S:.0f} s")
        shared = sorted(shared_memory() - self.shared_before)
        step.expect(not shared, f"left in shared memory: {', '.join(shared)}")
        before, now = self.gpu_before, self.on_gpu()
        card = (
            f"NVML: {now[0]} processes on the GPUs ({before[0]} before), {now[1]} MiB used ({before[1]} before)"
            if now and before
            else f"processes on a GPU not counted: {self.why_no_gpu or 'NVML does not list them'}"
        )
        files = len(list(self.temporary.iterdir()))
        step.left = (
            f"{len(self.living())} processes, {files} temporary files, {len(shared)} entries in shared memory; {card}"
        )

    def said(self, command: str, process: Process, limit_s: float = _END_LIMIT_S) -> Said:
        """Its end and its screen, without the table that follows and without this machine's paths."""
        left = end_of(process, limit_s)
        lines = [line.rstrip() for line in left.out.splitlines()]
        table = next((number for number, line in enumerate(lines) if line.startswith("╭")), len(lines))
        shown = [*lines[:table], *left.err.splitlines()]
        return Said(command, left.code, [line.replace(f"{self.base}/", "") for line in shown])


def main(arguments: Sequence[str]) -> int:
    """Every step, told on the screen and in faults.md."""
    parser = argparse.ArgumentParser(prog="python -m tests.gpu_faults", description=__doc__)
    parser.add_argument("out", type=Path, help="a new folder")
    parser.add_argument("--device", choices=DEVICES, default=os.environ.get("DEVICE", "auto"))
    parser.add_argument("--profile", default="smoke", help="how much each GEMM run measures (default: smoke)")
    parser.add_argument("--step", default="", choices=["", *STEPS], help="one step alone")
    given = parser.parse_args(arguments)
    given.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="gpu-faults-") as temporary:
        machine = open_machine(given.device, given.out.resolve(), Path(temporary))
        names = ", ".join(str(gpu.query("GetName").value) for gpu in machine.gpus) or "a CPU"
        done: list[Step] = []
        for name, (title, take) in STEPS.items():
            if given.step in ("", name):
                done.append(told(Step(title), lambda step, take=take: take(step, machine, given.profile)))
                (given.out / "faults.md").write_text(to_markdown(done, names))
    sys.stdout.write(f"{sum(not step.problems for step in done)} of {len(done)} as expected: {given.out}/faults.md\n")
    return 1 if any(step.problems for step in done) else 0


def open_machine(device: str, base: Path, temporary: Path) -> Machine:
    """This machine, with its GPUs where that is what is tried."""
    nvml, reason = open_nvml() if device == "auto" else (None, "a CPU is tried")
    return Machine(device, base, temporary, list(nvml.gpus()) if nvml else [], reason)


def told(step: Step, take: Callable[[Step], None]) -> Step:
    """A step with the time it took and its problems; one that is given up keeps no other from being taken."""
    began_s = time.monotonic()
    try:
        take(step)
    except (AssertionError, OSError, ValueError, subprocess.TimeoutExpired) as error:
        step.problems.append(f"given up: {type(error).__name__}: {error}")
    step.seconds = time.monotonic() - began_s
    problems = "".join(f"  {problem}\n" for problem in step.problems)
    sys.stdout.write(f"{step.title}: {'NOT as expected' if problems else 'ok'} ({step.seconds:.0f} s)\n{problems}")
    sys.stdout.flush()
    return step


def faults(step: Step, machine: Machine, _: str) -> None:
    """One run of everything that a device can do to a case, each followed by a case that must be measured."""
    folder = machine.base / "faults"
    environment = {
        **machine.environment,
        "OFPEAK_TEST_DEVICE": DEVICES[machine.device],
        "OFPEAK_TEST_BENCHES": str(HERE),
    }
    process = start("run", "--profile", "smoke", "--out", folder, environment=environment)
    step.said.append(machine.said("ofpeak run", process))
    step.expect(step.said[-1].code == 1, f"exit code {step.said[-1].code}, not 1")
    file = _read(step, "The run file afterwards", folder)
    if file is not None:
        expect_faults(step, file, NAMED[machine.device])
    machine.left_behind(step)


def expect_faults(step: Step, file: RunFile, named: dict[str, str]) -> None:
    """Note what a run of the family left otherwise than it should."""
    step.expect(not file.partial, f"partial: {file.partial}")
    for fault in FAULTS:
        broken, well = f"{fault}/n=1", f"{fault}/n=2"
        outcome, reason = file.outcome(broken), file.reason(broken)
        if fault == "too_large":
            step.expect(outcome == "not_applicable" and reason.startswith("needs "), f"{broken}: {outcome}, {reason}")
        else:
            step.expect(outcome == "failed" and named[fault] in reason, f"{broken}: {outcome}, {reason}")
        step.expect(file.outcome(well) == "measured", f"{well}: {file.outcome(well)}, {file.reason(well)}")
        is_new = file.worker(well) == file.worker(broken) + 1
        step.expect(is_new or fault not in ENDS_ITS_WORKER, f"{well} was measured by the worker that had failed")
    took_s = file.records.get("hung_kernel/n=1", {}).get("wall_s") or HUNG_S
    step.expect(took_s < HUNG_S, f"the hung kernel was waited for: {took_s} s")


def terminate_run(step: Step, machine: Machine, profile: str) -> None:
    """Ended in order: the run file is there before anything is recovered."""
    _end_run(step, machine, profile, signal.SIGTERM)


def kill_run(step: Step, machine: Machine, profile: str) -> None:
    """Ended at once: there is no more than the journal."""
    _end_run(step, machine, profile, signal.SIGKILL)


def _end_run(step: Step, machine: Machine, profile: str, signum: signal.Signals) -> None:
    """A GEMM run whose supervisor gets a signal in its second case; recovered, then resumed."""
    folder = machine.base / signum.name.lower()
    process = _begin(machine, profile, folder)
    process.send_signal(signum)
    step.said.append(machine.said(_command(profile), process))
    code = -signum if signum is signal.SIGKILL else 128 + signum
    step.expect(step.said[-1].code == code, f"exit code {step.said[-1].code}, not {code}")
    machine.left_behind(step)
    finished = finished_in(folder / "run-001.jsonl")
    recover = start_python("-m", "harness", "recover", folder, environment=machine.environment)
    step.said.append(machine.said("ofpeak recover SET", recover))
    recovered = _read(step, "The run file after `recover`", folder)
    resume = start_python("-m", "harness", "run", "--resume", folder, environment=machine.environment)
    step.said.append(machine.said("ofpeak run --resume SET", resume))
    step.expect(step.said[-1].code == 0, f"the resumed run ended with {step.said[-1].code}")
    whole = _read(step, "The run file after RESUME", folder)
    if recovered is not None and whole is not None:
        kept = [key for key in recovered.records if recovered.outcome(key) != "not_run"]
        step.expect(recovered.partial, "the recovered run is not marked partial")
        step.expect(kept == finished, f"recovered {kept} of {finished}")
        _expect_whole(step, whole)
        changed = [key for key in recovered.samples if whole.samples.get(key) != recovered.samples[key]]
        step.expect(not changed, f"measured again: {changed}")
    machine.left_behind(step)


def kill_worker(step: Step, machine: Machine, profile: str) -> None:
    """A GEMM run whose worker is killed in its second case: the run goes on by itself."""
    folder = machine.base / "worker"
    process = _begin(machine, profile, folder)
    os.kill(worker_of(process.pid), signal.SIGKILL)
    step.said.append(machine.said(_command(profile), process))
    step.expect(step.said[-1].code == 1, f"exit code {step.said[-1].code}, not 1")
    whole = _read(step, "The run file afterwards", folder)
    if whole is not None:
        hit = [key for key in whole.records if "died by signal 9 (SIGKILL)" in whole.reason(key)]
        step.expect(len(hit) == 1, f"{len(hit)} cases name the signal, not 1")
        _expect_whole(step, whole, failed=hit)
    machine.left_behind(step)


def _begin(machine: Machine, profile: str, folder: Path) -> Process:
    """A run that has finished a case and is in its next."""
    options = ("--profile", profile, "--only", "gemm", "--device", machine.device, "--out", folder)
    process = start_python("-m", "harness", "run", *options, environment=machine.environment)
    journal = folder / "run-001.jsonl"

    def is_in_mid_run() -> bool:
        if process.poll() is not None:
            raise AssertionError(f"the run ended before it could be killed: {end_of(process)}")
        finished = finished_in(journal)
        return bool(finished) and started_in(journal)[-1] not in finished

    try:
        wait_until(is_in_mid_run, "a case is finished and the next has begun", _BEGIN_LIMIT_S)
    except AssertionError:
        process.kill()
        raise
    time.sleep(_INTO_CASE_S[machine.device])
    return process


def _command(profile: str) -> str:
    return f"make bench PROFILE={profile} ONLY=gemm"


def _read(step: Step, when: str, folder: Path) -> RunFile | None:
    path = folder / "run-001.json"
    if not path.exists():
        step.problems.append(f"{when}: there is none")
        return None
    step.files[when] = file = read_run_file(path)
    return file


def _expect_whole(step: Step, file: RunFile, failed: Sequence[str] = ()) -> None:
    step.expect(not file.partial, f"partial in the end: {file.partial}")
    lacking = [
        key for key in file.records if key not in failed and file.outcome(key) in ("failed", "not_run", "missing")
    ]
    step.expect(not lacking, f"not measured in the end: {lacking}")


STEPS: dict[str, tuple[str, Callable[[Step, Machine, str], None]]] = {
    "faults": ("Exhausted memory, an illegal address, a hung kernel", faults),
    "SIGTERM": ("SIGTERM in mid-run", terminate_run),
    "worker": ("SIGKILL of the worker in mid-run", kill_worker),
    "supervisor": ("SIGKILL of the supervisor in mid-run", kill_run),
}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
