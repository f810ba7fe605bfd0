"""The probe's answer about a machine, read with suspicion."""

import json

import pytest

from harness.errors import ExitCode, HarnessError
from harness.machine import read_machine
from tests.hand_made_machines import answer, gpu, machine


@pytest.mark.parametrize("text", ["", "nonsense", "[]", "{}", '{"gpus": 5}', '{"gpus": ["x"]}', "[" * 100_000])
def test_an_answer_of_another_shape_is_refused_with_the_way_to_see_it(text):
    with pytest.raises(HarnessError, match=r"cannot be read: .* Run `python -m harness.probe doctor`") as told:
        read_machine(text)
    assert told.value.exit_code == ExitCode.INCONCLUSIVE


def test_an_error_of_the_probes_is_passed_on():
    with pytest.raises(HarnessError, match=r"^no key$"):
        read_machine(json.dumps({"error": "no key", "exit_code": 2}))


def test_what_torch_prints_before_the_answer_is_skipped():
    assert read_machine(f"a warning\n{answer()}\n").gpus[0].name == "NVIDIA H200"


def test_a_machine_with_a_driver_that_refuses_is_not_empty():
    assert read_machine(answer(gpus=[])).is_empty
    assert not read_machine(answer(gpus=[], driver_problem="mismatch")).is_empty


def test_facts_are_what_they_should_be_or_unknown():
    facts = machine(gpu({"power_limit_w": "much", "ecc": 1, "fabric_state": 7, "temperature_c": True})).gpus[0].facts
    assert facts.number("power_limit_w") is None
    assert facts.flag("ecc") is None
    assert facts.word("fabric_state") is None
    assert facts.number("temperature_c") is None
    assert (facts.number("pcie_lanes_max"), facts.flag("persistence")) == (16, True)


def test_the_reason_is_that_of_the_first_unknown():
    facts = machine(gpu({"ecc": None})).gpus[0].facts
    assert facts.why("persistence", "ecc") == "Not Supported"
    assert facts.why("nowhere") == "not read"
    assert facts.why("persistence") == "no such value"


@pytest.mark.parametrize("number", ["1e400", "-1e999", "NaN", "1" * 400])
def test_numbers_that_are_none_are_unknown(number):
    text = answer(gpu({"power_limit_w": "N"})).replace('"N"', number)
    fact = read_machine(text).gpus[0].facts.by_name["power_limit_w"]
    assert (fact.value, fact.status) == (None, "no number")


@pytest.mark.parametrize(
    ("field", "value"),
    [("compute_capability", [9]), ("compute_capability", "9.0"), ("processes", -1), ("processes", "two")],
)
def test_nonsense_about_a_gpu_is_unknown(field, value):
    told = machine(gpu(**{field: value})).gpus[0]
    assert getattr(told, {"compute_capability": "capability"}.get(field, field)) is None


def test_a_gpu_that_says_nothing_has_no_load_and_no_facts():
    (told,) = read_machine('{"gpus": [{"load": 5, "facts": []}], "torch": null, "facts": null}').gpus
    assert (told.name, told.load.missing, told.facts.by_name) == ("a GPU without a name", "no load was made", {})
