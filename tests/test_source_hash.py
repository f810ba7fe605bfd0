"""What a family's hash covers: a run is not continued, and not gated, across another source."""

from pathlib import Path

import pytest

from harness.supervisor import source_hashes


@pytest.mark.parametrize("statement", ["from benches.bench_first import x", "from benches import bench_first"])
def test_hash_changes_with_the_family_that_another_takes_its_cases_from(tmp_path: Path, statement: str):
    """The settings' sweep kept its hash while the family that declares its work was changed; so did decoding."""
    first, second = tmp_path / "bench_first.py", tmp_path / "bench_second.py"
    first.write_text("x = 1\n")
    second.write_text(f"{statement}\n")
    (tmp_path / "bench_third.py").write_text("y = 1\n")
    before = source_hashes(tmp_path)
    first.write_text("x = 2\n")
    after = source_hashes(tmp_path)
    assert [name for name in before if before[name] != after[name]] == ["first", "second"]


def test_family_that_is_not_there_is_left_to_the_worker(tmp_path: Path):
    (tmp_path / "bench_only.py").write_text("from benches.bench_gone import x\n")
    assert list(source_hashes(tmp_path)) == ["only"]
