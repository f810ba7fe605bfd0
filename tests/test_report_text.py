from rich.cells import cell_len

from harness.report.text import clean, fold_keys, format_duration, paragraph, wrap_key


def test_clean_text_holds_no_control_character():
    assert clean("a\x1b[31mb\x07\n\tc\u202ed\u200be\ud800") == "a\\x1b[31mb\\x07 c\\u202ed\\u200be\\ud800"


def test_clean_text_keeps_what_people_write():
    assert clean("  1343 MHz – ± µs 東京 ") == "1343 MHz – ± µs 東京"


def test_a_wrapped_key_loses_nothing_and_breaks_after_commas():
    key = "gemm/dtype=bf16,impl=torch,k=8192"
    assert wrap_key(key, 20) == ["gemm/dtype=bf16,", "impl=torch,k=8192"]
    for width in range(-1, 50):
        assert "".join(wrap_key(key, width)) == key
        assert max(map(cell_len, wrap_key(key, width))) <= max(width, 8)


def test_folded_keys_stand_for_exactly_the_keys_they_replace():
    keys = [f"gemm/dtype={dtype},impl={impl}" for dtype in ("bf16", "fp16") for impl in ("torch", "triton")]
    assert fold_keys(keys) == ["gemm/dtype=bf16|fp16,impl=torch|triton"]
    assert fold_keys(keys[:3]) == ["gemm/dtype=bf16|fp16,impl=torch", "gemm/dtype=bf16,impl=triton"]


def test_operations_fold_like_parameters():
    assert fold_keys(["copy/bytes=1", "read/bytes=1"]) == ["copy|read/bytes=1"]


def test_keys_of_different_parameters_are_not_folded_together():
    keys = ["copy/bytes=1", "read/bytes=2", "copy/bytes=1,numa=local", "copy/"]
    assert sorted(fold_keys(keys)) == sorted(keys)


def test_what_is_no_key_is_folded_as_it_is():
    keys = ["a/b", "a/=", "a/x=1,x=2", "", "plain"]
    assert sorted(fold_keys(keys)) == sorted(keys)


def test_durations_are_said_as_people_say_them():
    assert [format_duration(s) for s in (None, 8.24, 59.97, 200, 3600, 5400)] == [
        "–",
        "8.2 s",
        "1 min",
        "3 min 20 s",
        "1 h",
        "1 h 30 min",
    ]


def test_a_paragraph_never_fails_on_narrow_widths():
    for width in range(-2, 20):
        assert paragraph("one two three", width, 2, 3).replace("\n", " ").split()


def test_a_paragraph_leaves_a_percent_sign_with_its_number():
    assert paragraph("differ by 0.3 % where", 14, 0) == "differ by\n0.3 % where"


def test_a_paragraph_breaks_a_long_key_after_its_commas():
    """Lists of keys were cut in the middle of a word."""
    told = paragraph("lacks all_reduce/algorithm=ring,bytes=8,dtype=fp32,impl=nccl", 30, 2, 2)
    assert told.splitlines() == [
        "  lacks",
        "    all_reduce/algorithm=ring,",
        "    bytes=8,dtype=fp32,",
        "    impl=nccl",
    ]
