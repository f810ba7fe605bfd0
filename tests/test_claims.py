"""Claims: each figure stands in specs.toml, each glob finds a case, and the page is the one that is generated."""

import json
import re
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from harness import claims, specs
from harness.cli.app import exit_status
from harness.errors import ExitCode

ROOT = Path(__file__).resolve().parents[1]
CLAIMS = {claim.statement: claim for claim in claims.claims()}


def committed_keys() -> set[str]:
    runs = [json.loads(path.read_text(encoding="utf-8")) for path in (ROOT / "results/baselines").rglob("run*.json")]
    return {bench["name"] for run in runs for bench in run["benchmarks"]}


def test_every_figure_of_a_claim_stands_in_the_spec_table():
    assert list(claims.disagreements(claims.claims())) == []
    assert sum(len(claim.figures) for claim in CLAIMS.values()) >= 30


def test_a_figure_that_the_table_does_not_have_is_told():
    right = CLAIMS["Blackwell's HBM3e moves 4.8 TB/s."]
    wrong = replace(right, figures=(replace(right.figures[0], value=4900),))
    unknown = replace(right, figures=(replace(right.figures[0], gpu="H2000"),))
    assert list(claims.disagreements([right, wrong, unknown])) == [
        "Blackwell's HBM3e moves 4.8 TB/s. H200 SXM 141GB memory.gb_per_s: 4900, specs.toml has 4800",
        "Blackwell's HBM3e moves 4.8 TB/s. H2000 memory.gb_per_s: 4800, specs.toml has None",
    ]


@pytest.mark.parametrize("claim", claims.claims(), ids=lambda claim: claim.statement)
def test_every_figure_is_said_in_the_claims_own_words(claim):
    """Else the sentence could go stale while its figures are checked."""
    numbers = {
        float(text.replace(",", "")) for text in re.findall(r"\d[\d,]*(?:\.\d+)?", claim.statement + claim.right)
    }
    for figure in claim.figures:
        spoken = {figure.value, figure.value / 1000, float(f"{figure.value / 1000:.3g}")}
        assert spoken & numbers, figure


def test_a_number_of_gb_per_s_or_tb_per_s_names_its_figure():
    """What the sentence says of a card's bandwidth is among its figures."""
    for claim in claims.claims():
        if re.search(r"\d TB/s", claim.right):
            assert claim.figures, claim.statement


def test_the_ratios_that_claims_state_follow():
    b200, b100 = (specs.named(name) for name in ("B200 (HGX/DGX)", "B100 (HGX)"))
    assert (
        f"a factor of {b200.value('fp8') / b100.value('fp8'):.2f}"
        in CLAIMS["B200 trains in FP8 twice as fast as B100."].right
    )
    link = CLAIMS["NVLink 5 gives each GPU 1.8 TB/s."].right
    assert f"{b200.value('nvlink.links'):g} links of {1800 / b200.value('nvlink.links'):g} GB/s" in link
    nvfp4 = CLAIMS["NVFP4 with its two levels of scales takes 44 % less storage."].right
    bits = 4 + 8 / 16
    assert (
        f"makes {bits:g}: {100 * (1 - bits / 8):g} % less than 8, {100 * (1 - bits / 16):.1f} % less than 16" in nvfp4
    )
    assert (
        f"{756_960 // 8:,} per GPU"
        in CLAIMS["ResNet-50 runs at 9000 images/s in NVFP4 at 840 W, and at 2000 in FP16 at 1200 W."].right
    )


def test_the_compute_capabilities_are_the_tables():
    right = CLAIMS["B100 and B200 have compute capability 9.0 or higher."].right
    capabilities = {gpu.compute_capability for gpu in specs.gpus() if gpu.compute_capability >= (9, 0)}
    assert {tuple(map(int, text.split("."))) for text in re.findall(r"\d+\.\d", right)} == capabilities
    assert specs.named("NVIDIA B100").compute_capability == specs.named("NVIDIA B200").compute_capability == (10, 0)


def test_every_glob_finds_a_case_that_was_measured():
    keys = committed_keys()
    for claim in claims.claims():
        for glob in claim.measured_by:
            assert any(fnmatchcase(key, glob) for key in keys), (claim.statement, glob)


def test_statements_and_right_values_are_sentences_with_a_source():
    assert len(CLAIMS) == len(claims.claims()) == 21
    for claim in claims.claims():
        assert claim.statement.endswith(".")
        assert claim.right.endswith(".")
        assert "\n" not in claim.right
        assert claim.source


def test_the_kv_cache_is_linear():
    claim = CLAIMS["The KV cache grows exponentially with the context."]
    assert claim.verdict == "false"
    assert "It grows linearly" in claim.right


def test_an_unknown_verdict_is_refused():
    with pytest.raises(ValueError, match="unknown verdict 'maybe'"):
        claims._claim({"statement": "x", "verdict": "maybe", "right": "y", "source": "z"})


def test_the_page_is_the_generated_one(capsys):
    """Write it anew with `ofpeak claims --format md > docs/claims.md`."""
    assert exit_status(["claims", "--format", "md"]) == ExitCode.DONE
    assert capsys.readouterr().out == (ROOT / "docs/claims.md").read_text(encoding="utf-8")


def test_markdown_takes_nothing_for_emphasis(capsys):
    exit_status(["claims", "--format", "md"])
    for line in capsys.readouterr().out.splitlines():
        outside = "".join(line.replace("**", "").split("`")[::2])
        assert not re.search(r"(?<!\\)[_*]", outside), line


def test_claims_as_text(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    assert exit_status(["claims"]) == ExitCode.DONE
    out = capsys.readouterr().out
    assert out.startswith(
        "“Blackwell's HBM3e moves 5.0 TB/s.”\n"
        "  FALSE\n"
        "  right        7.7 TB/s on HGX B200, 8 TB/s on GB200, 7.75 to 8 on Blackwell Ultra: no Blackwell\n"
        "               card with HBM stands at 5.\n"
        "  source       NVIDIA Blackwell datasheet 3384703; for Ultra, NVIDIA's Blackwell Ultra datasheet and\n"
        "               HGX B300 page\n"
        "  measured by  copy/*, read/*, triad/*\n"
        "\n"
    )
    assert out.endswith("\n21 claims: 12 false, 1 unsupported, 2 misleading, 3 true for one part, 3 true\n")
    assert max(map(len, out.splitlines())) <= 100
