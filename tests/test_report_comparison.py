"""Comparisons and fleets as text, Markdown, CSV and JSON, compared whole; hostile text in every format."""

# ruff: noqa: E501 - a row of a table is one line

import csv
import io
import json
import re
from dataclasses import replace

import pytest
from rich.console import Console

from harness.compare import compare, set_of
from harness.costs import Costs, Job, LanguageModel, Prices, cost
from harness.efficiency import efficiency
from harness.fleet import judge_fleet
from harness.model import Fact
from harness.report import comparison, comparison_data
from harness.report import sections as sections_module
from tests import hand_made_sets as made

PRICES = Prices({"old": 3.6, "new": 7.2}, 0.36)
RATES = [1.00e12, 1.01e12, 0.99e12, 1.00e12, 1.01e12, 0.99e12, 0.5e12]


def text(sections, width: int) -> str:
    out = io.StringIO()
    sections_module.print_sections(sections, Console(file=out, width=width, markup=False, emoji=False, highlight=False))
    return out.getvalue()


def costs() -> Costs:
    return cost(compare(made.two_sets()), PRICES, LanguageModel(70e9, 64, "bf16"), Job(1e21, 1e18))


def fleet():
    return judge_fleet(made.cards(RATES, sm_clock_mhz=1500.0))


def test_a_comparison_as_text():
    assert (
        text(comparison.comparison_sections(compare(made.two_sets())), 100)
        == """\
sets
                                     power
set              device      card    limit  driver  runs  data sheet
old (reference)  NVIDIA Old  c0ffee  700 W   580.1     1  Old
new              NVIDIA New  decaf   700 W   580.1     1  New

gemm
                          of      at  pJ per                        delivered  limited
  set           rate    spec   clock    FLOP  promised  delivered  / promised  by
gemm/dtype=bf16,impl=torch,k=8192,m=8192,n=8192
  old  250.0 TFLOP/s  50.0 %  90.0 %   2.000    1.000×     1.000×     100.0 %  none
  new  800.0 TFLOP/s  40.0 %  90.0 %   1.000    4.000×     3.200×      80.0 %  none

links
                            limited
  set      rate  delivered  by
all_reduce/bytes=8
  old  8.000 µs     1.000×  none
  new  4.000 µs     2.000×  none
  no share of a peak (1 case of old, new): a latency
  no energy (1 case of old, new): no power
  no promised speed-up (1 case of old, new): no peak bounds 'bus'

memory  counted: read + write
                       of  pJ per                        delivered  limited
  set        rate    spec       B  promised  delivered  / promised  by
copy/bytes=4294967296,impl=torch
  old  1.000 TB/s  50.0 %   200.0    1.000×     1.000×     100.0 %  none
  new  3.000 TB/s  75.0 %   100.0    2.000×     3.000×     150.0 %  none

geometric means  over the cases that all sets have, to 'old'
                                delivered              J per unit of work,
  set  delivered    promised   / promised     of spec     to the reference
gemm (1 common case)
  old     1.000×      1.000×      100.0 %      50.0 %               1.000×
  new     3.200×      4.000×       80.0 %      40.0 %              0.5000×
links (1 common case)
  old     1.000×           –            –           –                    –
  new     2.000×           –            –           –                    –
memory (1 common case)
  old     1.000×      1.000×      100.0 %      50.0 %               1.000×
  new     3.000×      2.000×      150.0 %      75.0 %              0.5000×
all (3 common cases)
  old     1.000×  1.000× (2)  100.0 % (2)  50.0 % (2)           1.000× (2)
  new     2.678×  2.828× (2)  109.5 % (2)  54.8 % (2)          0.5000× (2)

what a set lacks
  'old', 1 case, not among its cases: read/bytes=4294967296

notes
  ratios of medians, without a significance test: sets of different hardware differ in more than
    their hardware. Between two sets of one card, look at the spread over runs beside them.
"""
    )


def test_costs_as_text():
    (*_, exaflop, petabyte, estimates, assumptions) = comparison.comparison_sections(
        replace(compare(made.two_sets()), lacking=(), notes=()), costs()
    )
    assert (
        text([exaflop, petabyte, estimates, assumptions], 100)
        == """\
cost per exaFLOP
  set   hours     kWh  dollars
gemm/dtype=bf16,impl=torch,k=8192,m=8192,n=8192
  old   1.111  0.5556   $4.200
  new  0.3472  0.2778   $2.600

cost per PB
  set    hours      kWh  dollars
copy/bytes=4294967296,impl=torch
  old   0.2778  0.05556   $1.020
  new  0.09259  0.02778  $0.6767

estimates
  set    hours      kWh  dollars
prefill, 1 M tokens
  old   0.1556  0.07778  $0.5880
  new  0.04861  0.03889  $0.3640
decode, 1 M tokens, batch 64
  old   0.6076   0.1215   $2.231
  new   0.2025  0.06076   $1.480
job: 1000 exaFLOP in bf16
  old     1111    555.6    $4200
  new    347.2    277.8    $2600
job: 1000 PB of memory traffic
  old    277.8    55.56    $1020
  new    92.59    27.78   $676.7
job: both, one after the other
  old     1389    611.1    $5220
  new    439.8    305.6    $3277
  by the rates of: gemm/dtype=bf16,impl=torch,k=8192,m=8192,n=8192; copy/bytes=4294967296,impl=torch

what the costs assume
  one GPU costs: old $3.6/h, new $7.2/h, busy all of the time
  a kWh costs $0.36; it comes on top of the hourly price
  energy is the GPU's own, gross; its host, its cooling and what the supply loses are not in it
  dollars = hours x hourly price + kWh x price of a kWh; hours = work / measured rate
  a dense model of 70.00 billion parameters in bf16: 2 x parameters = 140.0 GFLOP a token; no
    attention, no KV cache
  prefill: seconds a token = 2 x parameters / rate of the fastest GEMM
  decode: seconds a token = the longer of parameters x 2 B / batch / rate of the fastest read
    (weights are read once a step for 64 sequences) and prefill's; so both are lower bounds
  the weights take 140.0 GB, more than one GPU of 'old', 'new' holds: there the figures are GPU time
    of a model spread over several, links left out
  a job runs on one GPU at the rates of the fastest GEMM of its type and the fastest read that all
    have
  FLOP and bytes are done one after the other; where they overlap, the longer of the two is the
    least
"""
    )


def test_a_comparison_as_markdown():
    assert (
        sections_module.to_markdown(comparison.comparison_sections(compare(made.two_sets())))
        == """\
### sets

| set | device | card | power limit | driver | runs | data sheet |
| :--- | :--- | :--- | ---: | ---: | ---: | :--- |
| old (reference) | NVIDIA Old | c0ffee | 700 W | 580.1 | 1 | Old |
| new | NVIDIA New | decaf | 700 W | 580.1 | 1 | New |

### gemm

| case | set | rate | of spec | at clock | pJ per FLOP | promised | delivered | delivered / promised | limited by |
| :--- | :--- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | :--- |
| `gemm/dtype=bf16,impl=torch,k=8192,m=8192,n=8192` | old | 250.0 TFLOP/s | 50.0 % | 90.0 % | 2.000 | 1.000× | 1.000× | 100.0 % | none |
|  | new | 800.0 TFLOP/s | 40.0 % | 90.0 % | 1.000 | 4.000× | 3.200× | 80.0 % | none |

### links

| case | set | rate | delivered | limited by |
| :--- | :--- | ---: | ---: | :--- |
| `all_reduce/bytes=8` | old | 8.000 µs | 1.000× | none |
|  | new | 4.000 µs | 2.000× | none |

- no share of a peak (1 case of old, new): a latency
- no energy (1 case of old, new): no power
- no promised speed-up (1 case of old, new): no peak bounds 'bus'

### memory

Counted: read + write

| case | set | rate | of spec | pJ per B | promised | delivered | delivered / promised | limited by |
| :--- | :--- | ---: | ---: | ---: | ---: | ---: | ---: | :--- |
| `copy/bytes=4294967296,impl=torch` | old | 1.000 TB/s | 50.0 % | 200.0 | 1.000× | 1.000× | 100.0 % | none |
|  | new | 3.000 TB/s | 75.0 % | 100.0 | 2.000× | 3.000× | 150.0 % | none |

### geometric means

Over the cases that all sets have, to 'old'

| case | set | delivered | promised | delivered / promised | of spec | J per unit of work, to the reference |
| :--- | :--- | ---: | ---: | ---: | ---: | ---: |
| gemm (1 common case) | old | 1.000× | 1.000× | 100.0 % | 50.0 % | 1.000× |
|  | new | 3.200× | 4.000× | 80.0 % | 40.0 % | 0.5000× |
| links (1 common case) | old | 1.000× | – | – | – | – |
|  | new | 2.000× | – | – | – | – |
| memory (1 common case) | old | 1.000× | 1.000× | 100.0 % | 50.0 % | 1.000× |
|  | new | 3.000× | 2.000× | 150.0 % | 75.0 % | 0.5000× |
| all (3 common cases) | old | 1.000× | 1.000× (2) | 100.0 % (2) | 50.0 % (2) | 1.000× (2) |
|  | new | 2.678× | 2.828× (2) | 109.5 % (2) | 54.8 % (2) | 0.5000× (2) |

### what a set lacks

- 'old', 1 case, not among its cases: read/bytes=4294967296

### notes

- ratios of medians, without a significance test: sets of different hardware differ in more than their hardware. Between two sets of one card, look at the spread over runs beside them.
"""
    )


def test_a_comparison_as_csv():
    assert (
        comparison_data.comparison_csv(compare(made.two_sets()), cost(compare(made.two_sets()), PRICES))
        == """\
family,key,convention,set,gpu,is_reference,rate,unit,runs,spec_ratio,at_clock_ratio,energy_per_work_j,power_w,sm_clock_mhz,limited_by,bound,promised,delivered,delivered_over_promised,hours_per_lump,kwh_per_lump,usd_per_lump,reasons
gemm,"gemm/dtype=bf16,impl=torch,k=8192,m=8192,n=8192",,old,NVIDIA Old,yes,250000000000000.0,FLOP,1,0.5,0.9,2e-12,,,none,bf16,1.0,1.0,1.0,1.1111111111111112,0.5555555555555556,4.2,
gemm,"gemm/dtype=bf16,impl=torch,k=8192,m=8192,n=8192",,new,NVIDIA New,no,800000000000000.0,FLOP,1,0.4,0.9,1e-12,,,none,bf16,4.0,3.2,0.8,0.3472222222222222,0.2777777777777778,2.6,
links,all_reduce/bytes=8,,old,NVIDIA Old,yes,8e-06,s,1,,,,,,none,,,1.0,,,,,spec_ratio: a latency; at_clock_ratio: memory; energy_per_work_j: no power; promised_per_s: no peak bounds 'bus'; promised: no peak bounds 'bus'; delivered_over_promised: no peak bounds 'bus'
links,all_reduce/bytes=8,,new,NVIDIA New,no,4e-06,s,1,,,,,,none,,,2.0,,,,,spec_ratio: a latency; at_clock_ratio: memory; energy_per_work_j: no power; promised_per_s: no peak bounds 'bus'; promised: no peak bounds 'bus'; delivered_over_promised: no peak bounds 'bus'
memory,"copy/bytes=4294967296,impl=torch",read + write,old,NVIDIA Old,yes,1000000000000.0,B,1,0.5,,2e-10,,,none,memory,1.0,1.0,1.0,0.2777777777777778,0.05555555555555555,1.02,at_clock_ratio: memory
memory,"copy/bytes=4294967296,impl=torch",read + write,new,NVIDIA New,no,3000000000000.0,B,1,0.75,,1e-10,,,none,memory,2.0,3.0,1.5,0.09259259259259259,0.027777777777777776,0.6766666666666666,at_clock_ratio: memory
memory,read/bytes=4294967296,read,new,NVIDIA New,no,3600000000000.0,B,1,,,,,,none,memory,,,,0.07716049382716049,,,at_clock_ratio: memory; energy_per_work_j: no power; delivered: the reference 'old' lacks this case; promised: the reference 'old' lacks this case; delivered_over_promised: the reference 'old' lacks this case
"""
    )


def test_a_comparison_as_json():
    sets = (set_of("old", [made.run(made.record(made.COPY, "memory", 1e12, 2e-10, 0.5))]),)
    assert (
        comparison_data.comparison_json(compare(sets))
        == """\
{
 "reference": "old",
 "sets": [
  {
   "label": "old",
   "gpu": "NVIDIA Test",
   "card": "c0ffee",
   "operator_label": "",
   "power_limit_w": 700.0,
   "declare": "",
   "drivers": [
    "580.1"
   ],
   "source": "",
   "runs": [
    "r"
   ],
   "sheet": {
    "gpu": "Old",
    "match": "exact",
    "reason": ""
   }
  }
 ],
 "rows": [
  {
   "family": "memory",
   "key": "copy/bytes=4294967296,impl=torch",
   "convention": "read + write",
   "better": "higher",
   "cells": {
    "old": {
     "rate": 1000000000000.0,
     "unit": "B",
     "runs": 1,
     "spec_ratio": 0.5,
     "at_clock_ratio": null,
     "energy_per_work_j": 2e-10,
     "power_w": null,
     "sm_clock_mhz": null,
     "limited_by": "none",
     "bound": "memory",
     "promised_per_s": 2000000000000.0,
     "is_verified": true,
     "promised": 1.0,
     "delivered": 1.0,
     "delivered_over_promised": 1.0,
     "reasons": {
      "at_clock_ratio": "memory"
     }
    }
   }
  }
 ],
 "geometric_means": [
  {
   "family": "memory",
   "cases": 1,
   "cells": {
    "old": {
     "delivered": 1.0,
     "delivered_cases": 1,
     "promised": 1.0,
     "delivered_over_promised": 1.0,
     "promised_cases": 1,
     "spec_ratio": 0.5,
     "spec_cases": 1,
     "energy_ratio": 1.0,
     "energy_cases": 1
    }
   }
  }
 ],
 "lacking": [],
 "notes": []
}
"""
    )


def test_json_holds_costs_and_efficiency():
    sets = [
        set_of(f"{limit:g}", [made.run(made.record(made.COPY, "memory", 1e12, 1e-10), limit_w=limit)])
        for limit in (500.0, 700.0)
    ]
    compared = compare(sets)
    document = json.loads(
        comparison_data.comparison_json(compared, cost(compared, Prices(usd_per_kwh=0.1)), efficiency(sets))
    )
    assert document["costs"]["labels"] == ["500", "700"]
    assert document["efficiency"][1]["points"][0]["work_per_joule"] == pytest.approx(1e10)


def test_efficiency_as_text():
    sets = [
        set_of(f"{limit:g}", [made.run(made.record(made.COPY, "memory", rate, joules), limit_w=limit)])
        for limit, rate, joules in ((700.0, 4e12, 2e-10), (500.0, 3e12, 1e-10))
    ]
    sections = [
        s for s in comparison.comparison_sections(compare(sets), None, efficiency(sets)) if "efficiency" in s.title
    ]
    assert (
        text(sections, 100)
        == """\
efficiency of NVIDIA Test c0ffee, compute-bound
  no compute-bound case with measured energy is common to all sets of this card

efficiency of NVIDIA Test c0ffee, memory-bound  geometric means of 1 common case
     power      rate to   GB a
set  limit  the fastest  joule
500  500 W       75.0 %  10.00  most work a joule
700  700 W      100.0 %  5.000
"""
    )


def test_a_fleet_as_text():
    assert (
        text(comparison.fleet_sections(fleet()), 100)
        == """\
outliers of 7 cards, NVIDIA Test, worst first
copy/bytes=4294967296,impl=torch
  rack 6 s6 card6: z -33.7, value 500.0 GB/s, median of the fleet 1.000 TB/s, share 50.0 %, likely
    cause lower true clock: 1500 of the fleet's 1980 MHz

cards
                 outliers  worst
card             of cases      z
rack 6 s6 card6    1 of 1  -33.7

spread over the fleet
                       robust   worst
               median      sd    card
copy/bytes=4294967296,impl=torch
  7 cards  1.000 TB/s  1.48 %  50.0 %

notes
  robust z = (value - median) / max(1.4826 x MAD, 0.2 % of the median); an outlier is worse by 3.5
    (Iglewicz and Hoaglin, 1993)
"""
    )


def test_a_fleet_as_csv():
    assert (
        comparison_data.fleet_csv(fleet())
        == """\
label,operator_label,card,family,key,z,value,median,unit,ratio,causes
s6,rack 6,card6,memory,"copy/bytes=4294967296,impl=torch",-33.72453797382976,500000000000.0,1000000000000.0,B,0.5,lower true clock: 1500 of the fleet's 1980 MHz
"""
    )


def test_a_fleet_as_markdown_and_json_holds_the_finding():
    assert "| `copy/bytes=4294967296,impl=torch` | rack 6 s6 card6 | -33.7 |" in sections_module.to_markdown(
        comparison.fleet_sections(fleet())
    )
    assert json.loads(comparison_data.fleet_json(fleet()))["findings"][0]["label"] == "s6"


def test_a_fleet_without_an_outlier_says_so():
    assert "no case of any card is an outlier" in text(
        comparison.fleet_sections(judge_fleet(made.cards(RATES[:6]))), 100
    )


@pytest.mark.parametrize("width", [20, 40, 60, 80, 100, 160])
def test_no_width_loses_a_key_or_a_figure(width: int):
    out = "".join(text(comparison.comparison_sections(compare(made.two_sets()), costs()), width).split())
    for words in (made.COPY.key, made.GEMM.key, "3.000TB/s", "150.0%", "$2.231"):
        assert words in out


def test_an_unverified_promise_carries_a_mark():
    peaks = {name: replace(peak, provenance="recalled") for name, peak in made.NEW_SHEET.peaks.items()}
    recalled = replace(made.new(), sheet=replace(made.NEW_SHEET, peaks=peaks))
    out = text(comparison.comparison_sections(compare([made.two_sets()[0], set_of("new", [recalled])])), 100)
    assert "2.000×?" in out
    assert "(unverified)" in out


# Hostile text


def hostile_sets():
    """Two sets whose every string that a file gives is hostile."""
    word = made.HOSTILE
    sheet = replace(made.NO_SHEET, reason=word)
    record = made.record(made.COPY, word, 1e12, limited_by=word)
    metrics = tuple(replace(m, label=word, reason=word) if m.name == "rate" else m for m in record.metrics)
    record = replace(record, key=f"=cmd|{word}", metrics=metrics, reason=word)
    run = made.run(record, name=word, sheet=sheet, card=word, declare=word, label=word)
    run = replace(run, environment={**run.environment, "driver": Fact(word)})
    other = made.run(replace(record, key=f"@{word}"), record, name=word, sheet=sheet, card=word)
    return [set_of(word, [run]), set_of(f"+{word}", [other])]


FORBIDDEN = ("\x1b", "\u202e", "\n\n\n\n")


def hostile_outputs() -> dict[str, str]:
    sets = hostile_sets()
    compared = compare(sets)
    priced = cost(compared, Prices(usd_per_kwh=1.0))
    sections = list(comparison.comparison_sections(compared, priced, efficiency(sets)))
    cards = judge_fleet(
        [replace(one, label=f"{one.label}{i}") for i in range(4) for one in hostile_sets_of_two_cards(i)]
    )
    return {
        "text": text(sections, 100),
        "markdown": sections_module.to_markdown(sections),
        "csv": comparison_data.comparison_csv(compared, priced),
        "json": comparison_data.comparison_json(compared, priced, efficiency(sets)),
        "fleet text": text(comparison.fleet_sections(cards), 100),
        "fleet markdown": sections_module.to_markdown(comparison.fleet_sections(cards)),
        "fleet csv": comparison_data.fleet_csv(cards),
        "fleet json": comparison_data.fleet_json(cards),
    }


def hostile_sets_of_two_cards(number: int):
    """The same sets as other cards, one of them slow."""
    for at, one in enumerate(hostile_sets()):
        digest = one.runs[0]
        slow = number == at == 0
        cases = tuple(replace(c, value=c.value / 2 if slow and c.value else c.value) for c in digest.cases)
        yield replace(
            one, label=f"{one.label}{at}", runs=(replace(digest, card=f"{number}{at}{made.HOSTILE}", cases=cases),)
        )


@pytest.mark.parametrize("name", list(hostile_outputs()))
def test_hostile_text_is_escaped_everywhere(name: str):
    out = hostile_outputs()[name]
    for character in FORBIDDEN:
        assert character not in out
    if "markdown" in name:
        assert not re.search(r"(?<!\\\\)<", out.replace("<br>", ""))
        assert "\\`" in out
    if "csv" in name:
        cells = [cell for row in csv.reader(io.StringIO(out)) for cell in row]
        assert not [cell for cell in cells if cell[:1] in "=+@" and cell]


def test_rich_markup_is_printed_as_it_is():
    assert "[bold]red[/bold]" in "".join(hostile_outputs()["text"].split())
