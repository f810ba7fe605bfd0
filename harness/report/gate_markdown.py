"""A gate's outcome as Markdown: for a pull request and GitHub's job summary."""

from harness.gate.outcome import Outcome
from harness.report import sections
from harness.report.gate_line import verdict_line
from harness.report.gate_text import gate_sections
from harness.report.markdown import escape


def to_markdown(outcome: Outcome) -> str:
    """The verdict first, since a summary is read from its top, and last, where every format has it."""
    line = escape(verdict_line(outcome))
    return f"**{line}**\n\n{sections.to_markdown(gate_sections(outcome))}\n{line}\n"
