"""Numbers at the edge: what people read for values that can be checked in the head."""

import math

import pytest

from harness.units import (
    GIB,
    KIB,
    MIB,
    UNKNOWN,
    format_energy_per,
    format_number,
    format_percent,
    format_rate,
    format_size,
    format_time,
    significant,
)


def test_sizes_are_binary():
    assert (KIB, MIB, GIB) == (1024, 1024**2, 1024**3)


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [
        (4231.4, 4, "4231"),
        (0.51234, 4, "0.5123"),
        (1.0, 4, "1.000"),
        (-2.5, 3, "-2.50"),
        (123456.0, 4, "123500"),
        (0, 4, "0"),
        (math.inf, 4, "inf"),
        (math.nan, 4, "nan"),
    ],
)
def test_significant_digits_never_turn_into_an_exponent(value, digits, text):
    assert significant(value, digits) == text


@pytest.mark.parametrize(
    ("per_second", "unit", "text"),
    [
        (4.27e12, "B", "4.270 TB/s"),
        (6.7e14, "FLOP", "670.0 TFLOP/s"),
        (1.24e15, "FLOP", "1240 TFLOP/s"),
        (55.1e9, "B", "55.10 GB/s"),
        (1.5e6, "B", "1.500 MB/s"),
        (2e3, "B", "2.000 kB/s"),
        (8.0, "B", "8.000 B/s"),
        (0.5, "B", "0.5000 B/s"),
        (0.0, "B", "0 B/s"),
        (None, "B", UNKNOWN),
    ],
)
def test_rates_step_by_a_thousand_and_stop_at_tera(per_second, unit, text):
    assert format_rate(per_second, unit) == text


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (8, "8 B"),
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1 KiB"),
        (1536, "1.5 KiB"),
        (256 * MIB, "256 MiB"),
        (4 * GIB, "4 GiB"),
        (8192 * GIB, "8192 GiB"),
        (None, UNKNOWN),
    ],
)
def test_buffer_sizes_step_by_1024(size_bytes, text):
    assert format_size(size_bytes) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (90.0, "90.00 s"),
        (1.0, "1.000 s"),
        (0.00163, "1.630 ms"),
        (20e-6, "20.00 µs"),
        (3e-9, "3.000 ns"),
        (5e-10, "0.5000 ns"),
        (0.0, "0 ns"),
        (None, UNKNOWN),
    ],
)
def test_times_keep_the_step_above_one(seconds, text):
    assert format_time(seconds) == text


def test_ratios_are_percent_only_in_print():
    assert format_percent(0.6812) == "68.1 %"
    assert format_percent(1.0, decimals=0) == "100 %"
    assert format_percent(None) == UNKNOWN


def test_plain_numbers_carry_their_unit():
    assert format_number(1410.4, "MHz") == "1410 MHz"
    assert format_number(1.25, decimals=2) == "1.25"
    assert format_number(0.0, "W") == "0 W"
    assert format_number(None, "MHz") == UNKNOWN


def test_energy_is_told_in_picojoules():
    assert format_energy_per(1.03e-12, "FLOP") == "1.030 pJ/FLOP"
    assert format_energy_per(None, "B") == UNKNOWN
