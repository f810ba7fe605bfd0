"""An external meter's record beside the card's own power, as lines."""

from collections.abc import Iterable, Sequence

from harness import units
from harness.meter import Beside, median_ratio
from harness.report.text import clean


def meter_lines(found: Sequence[Beside]) -> Iterable[str]:
    """A line a case, then what the whole says of the sensor's gain."""
    yield "beside the meter (what it is wired to counts: a card's slot and cables, or a whole node)"
    for row in found:
        yield f"  {clean(row.key)}"
        if row.ratio is None:
            yield f"    no comparison: {clean(row.reason)}"
            continue
        yield (
            f"    meter {units.format_number(row.meter_w, 'W', 1)} ({row.readings} readings), "
            f"card {units.format_number(row.card_w, 'W', 1)}, card / meter {row.ratio:.3f}"
        )
    ratio = median_ratio(found)
    if ratio is not None:
        yield f"  median card / meter {ratio:.3f}: divide this card's joules by it to have them by the meter"
