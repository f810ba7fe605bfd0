"""The doctor's findings as text: the gravest first, then the verdict, then what could not be judged."""

from collections.abc import Iterator, Sequence

from harness.doctor import Diagnosis
from harness.findings import LEVELS, Finding, Unjudged
from harness.machine import Machine
from harness.report.text import clean, counted, paragraph

_LABEL_WIDTH = 8


def diagnosis_lines(diagnosis: Diagnosis, machine: Machine, width: int) -> Iterator[str]:
    """Everything that the doctor says of one machine."""
    yield from paragraph(_machine_line(machine), width, 0, 2).splitlines()
    count = len(machine.gpus)
    for level in LEVELS:
        findings = diagnosis.of(level)
        if findings:
            yield ""
            yield level
        for finding in findings:
            yield from _finding_lines(finding, count, width)
    yield ""
    yield _verdict(diagnosis)
    if diagnosis.not_judged:
        yield from paragraph(f"not judged: {_unjudged_text(diagnosis.not_judged, count)}", width, 0, 2).splitlines()


def _machine_line(machine: Machine) -> str:
    names = [clean(gpu.name) for gpu in machine.gpus]
    gpus = [f"{names.count(name)} × {name}" if names.count(name) > 1 else name for name in dict.fromkeys(names)]
    driver = machine.facts.word("driver")
    torch = machine.torch
    parts = [
        ", ".join(gpus) or "no GPU can be listed",
        f"driver {clean(driver)}" if driver else "",
        f"torch {clean(torch.version)}" if torch.version else "",
        f"CUDA {clean(torch.cuda)}" if torch.cuda else "",
    ]
    return ", ".join(part for part in parts if part)


def _finding_lines(finding: Finding, count: int, width: int) -> Iterator[str]:
    where = _where(finding.gpus, count)
    yield from paragraph(f"{where}{clean(finding.what)}", width, 2, 2).splitlines()
    for label, text in (("cause", finding.cause), ("remedy", finding.remedy)):
        start = f"    {label:<{_LABEL_WIDTH}}"
        rest = paragraph(clean(text), width, len(start))
        yield from (start + rest[len(start) :]).rstrip().splitlines()


def _where(gpus: Sequence[int], count: int) -> str:
    """Which GPUs, where there are several and not all are meant."""
    if count < 2 or not gpus:
        return ""
    if len(gpus) == count:
        return "every GPU: "
    return f"GPU {', '.join(map(str, gpus))}: "


def _verdict(diagnosis: Diagnosis) -> str:
    found = (
        counted(len(diagnosis.of("blocker")), "blocker"),
        counted(len(diagnosis.of("key")), "key finding"),
        counted(len(diagnosis.of("note")), "note"),
    )
    verdict = "fit to measure" if diagnosis.is_fit else "not fit to measure"
    return f"{verdict}: {', '.join(found) if diagnosis.findings else 'nothing found'}"


def _unjudged_text(unjudged: Sequence[Unjudged], count: int) -> str:
    """What has one reason in common stands before it."""
    subjects: dict[str, list[str]] = {}
    for one in unjudged:
        subjects.setdefault(clean(one.why), []).append(f"{clean(one.what)}{_on_gpus(one.gpus, count)}")
    return "; ".join(f"{', '.join(names)} ({why})" for why, names in subjects.items())


def _on_gpus(gpus: Sequence[int], count: int) -> str:
    if count < 2 or not gpus or len(gpus) == count:
        return ""
    return f" on GPU {', '.join(map(str, gpus))}"
