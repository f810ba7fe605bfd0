"""A gate's outcome as JUnit XML: a regression is a failure, whatever could not be decided an error."""

from xml.etree import ElementTree

from harness.corruption import SUSPECTED
from harness.gate.outcome import Outcome, Result
from harness.report.gate_line import figures as judged_figures
from harness.report.gate_line import verdict_line
from harness.report.text import clean

_SUITE = "ofpeak gate"


def to_junit(outcome: Outcome) -> str:
    """One test a case and a family's mean; what forbids comparing at all is a test of its own."""
    root = ElementTree.Element("testsuites", name=_SUITE)
    suite = ElementTree.SubElement(root, "testsuite", name=_SUITE)
    line = verdict_line(outcome)
    against = outcome.comparability.undeclared.get("all", ())
    if against or not outcome.results:
        case = ElementTree.SubElement(suite, "testcase", classname=_SUITE, name="comparable")
        kind = outcome.verdicts[0]
        error = ElementTree.SubElement(case, "error", message=line, type=kind)
        error.text = "\n".join(clean(change.words) for change in against)
    if outcome.suspected:
        case = ElementTree.SubElement(suite, "testcase", classname=_SUITE, name=SUSPECTED)
        error = ElementTree.SubElement(case, "error", message=line, type="inconclusive")
        error.text = "\n".join(clean(told) for told in outcome.suspected)
    for result in outcome.results:
        _add(suite, result)
    ElementTree.SubElement(suite, "system-out").text = line
    counts = {"tests": len(suite.findall("testcase"))}
    counts |= {name: len(suite.findall(f"testcase/{found}")) for name, found in _COUNTED.items()}
    for element in (root, suite):
        element.attrib |= {name: str(number) for name, number in counts.items()}
    suite.set("time", "0")
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


_COUNTED = {"failures": "failure", "errors": "error", "skipped": "skipped"}


def _add(suite: ElementTree.Element, result: Result) -> None:
    case = ElementTree.SubElement(suite, "testcase", classname=clean(result.family), name=clean(result.key), time="0")
    figures = "" if result.evidence is None else judged_figures(result)
    if result.verdict == "pass":
        ElementTree.SubElement(case, "system-out").text = figures
        return
    said = [clean(part) for part in (*result.notes, result.cause) if part]
    name = "failure" if result.verdict == "regression" else "error"
    message = ": ".join(part for part in (result.verdict, figures or "; ".join(said)) if part)
    ElementTree.SubElement(case, name, message=message, type=result.verdict).text = "\n".join(said)
