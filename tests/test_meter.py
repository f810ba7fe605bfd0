"""A meter's record beside the card's power: windows of two seconds, round numbers."""

from dataclasses import replace

import pytest

from harness.errors import HarnessError
from harness.meter import MeterRecord, lay_beside, median_ratio, read_meter
from harness.report.meter_table import meter_lines
from tests import hand_made

BEGAN = "2026-01-02T03:04:00.500Z"
BEGAN_S = 1767323040.5


def a_run(power_w=600.0, began=BEGAN):
    """A copy whose window lasts 2 s from `BEGAN`."""
    record = hand_made.copy_record()
    telemetry = replace(record.telemetry, power_w=power_w, window_began_at=began, busy_ratio=1.0)
    samples = replace(record.samples, seconds=(0.1, 0.1), launches_per_sample=10, window_s=2.0)
    return hand_made.gpu_run(replace(record, telemetry=telemetry, samples=samples))


def every_half_second(watts, start_s=BEGAN_S - 1, count=10):
    return MeterRecord(tuple(start_s + i * 0.5 for i in range(count)), (watts,) * count)


def written(tmp_path, text):
    path = tmp_path / "meter.csv"
    path.write_text(text)
    return path


def test_card_is_held_against_the_meter_over_its_window():
    (row,) = lay_beside(every_half_second(625.0), a_run())
    assert (row.meter_w, row.readings, row.card_w, row.ratio) == (625.0, 5, 600.0, 0.96)


def test_meter_that_reads_outside_the_window_only_tells_nothing():
    (row,) = lay_beside(every_half_second(625.0, BEGAN_S + 60), a_run())
    assert row.ratio is None
    assert row.reason == "0 readings of the meter lie in the window of 2.0 s"


def test_meter_that_begins_in_the_window_tells_nothing():
    (row,) = lay_beside(every_half_second(625.0, BEGAN_S + 0.5), a_run())
    assert row.reason == "the meter's record begins in the window"


def test_run_without_the_windows_time_cannot_be_compared():
    (row,) = lay_beside(every_half_second(625.0), a_run(began=""))
    assert row.reason == "the run file does not say when the window began"


def test_unknown_power_of_the_card_stays_unknown():
    (row,) = lay_beside(every_half_second(625.0), a_run(power_w=None))
    assert (row.card_w, row.ratio) == (None, None)


def test_time_may_be_iso_or_unix_and_columns_may_be_named_otherwise(tmp_path):
    iso = read_meter(written(tmp_path, f"time,power_w\n{BEGAN},600\n2026-01-02T04:04:01.500+01:00,610\n"))
    unix = read_meter(written(tmp_path, f"note,Timestamp,Watts\nx,{BEGAN_S},600\ny,{BEGAN_S + 1},610\n"))
    assert iso == unix == MeterRecord((BEGAN_S, BEGAN_S + 1), (600.0, 610.0))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "has no columns 'time' and 'power_w'"),
        ("time,power_w\n", "holds no reading"),
        ("time,power_w\nnoon,600\n", "line 2: 'noon' is neither ISO 8601 nor Unix seconds"),
        ("time,power_w\n2026-01-02T03:04:00,600\n", "line 2: '2026-01-02T03:04:00' has no time zone"),
        ("time,power_w\n1,nan\n", "line 2: 'nan' is not a finite number"),
        ("time,power_w\n1,\n", "line 2: could not convert string to float"),
        ("time,power_w\n2,600\n1,600\n", "line 3: its time lies before the line above"),
        ("time,power_w\n1\n", "line 2: could not convert string to float"),
    ],
)
def test_record_that_cannot_be_read_is_refused_with_its_line(tmp_path, text, told):
    with pytest.raises(HarnessError) as refusal:
        read_meter(written(tmp_path, text))
    assert told in str(refusal.value)


def test_record_that_is_no_text_is_refused(tmp_path):
    path = tmp_path / "meter.csv"
    path.write_bytes(b"time,power_w\n\xff\xfe\n")
    with pytest.raises(HarnessError, match="no UTF-8 text"):
        read_meter(path)


def test_lines_say_what_the_sensors_gain_is():
    found = lay_beside(every_half_second(625.0), a_run()) + lay_beside(every_half_second(625.0), a_run(began=""))
    assert median_ratio(found) == 0.96
    assert "\n".join(meter_lines(found)) == (
        "beside the meter (what it is wired to counts: a card's slot and cables, or a whole node)\n"
        "  copy/bytes=4294967296,impl=torch\n"
        "    meter 625.0 W (5 readings), card 600.0 W, card / meter 0.960\n"
        "  copy/bytes=4294967296,impl=torch\n"
        "    no comparison: the run file does not say when the window began\n"
        "  median card / meter 0.960: divide this card's joules by it to have them by the meter"
    )
