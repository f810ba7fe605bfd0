"""What torchrun's variables say, without torchrun."""

import pytest

from harness.cli.run import said_of_ranks
from harness.errors import HarnessError
from harness.torchrun import Place, place_of

VARIABLES = {
    "TORCHELASTIC_RUN_ID": "none",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
    "TORCHELASTIC_RESTART_COUNT": "0",
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "GROUP_RANK": "1",
    "GROUP_WORLD_SIZE": "2",
    "MASTER_ADDR": "gpu-1",
    "MASTER_PORT": "29500",
}


def test_place_is_what_torchrun_says():
    place = place_of(VARIABLES)
    assert place == Place(
        rank=3, ranks=4, host=1, hosts=2, local_rank=1, store_address="gpu-1", store_port=29500, attempt=0
    )
    assert [place.host_of(rank) for rank in range(4)] == [0, 0, 1, 1]


def test_without_torchrun_there_is_no_place_whatever_else_sets_rank():
    others = {name: value for name, value in VARIABLES.items() if not name.startswith("TORCHELASTIC")}
    assert place_of({}) is None
    assert place_of(others) is None


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"RANK": "first"}, "torchrun's variables are not whole"),
        ({"TORCHELASTIC_USE_AGENT_STORE": "False"}, "agents share no store"),
        ({"WORLD_SIZE": "6"}, "6 ranks on 2 hosts, 2 of them on host 1: every host must run the same number"),
    ],
)
def test_what_cannot_be_one_run_is_refused(changed: dict[str, str], told: str):
    with pytest.raises(HarnessError, match=told):
        place_of(VARIABLES | changed)


def test_what_is_measured_is_said_beforehand():
    place = place_of(VARIABLES)
    assert place is not None
    assert said_of_ranks(place, ()) == (
        "4 ranks on 2 hosts: only what runs between ranks is measured. "
        "Name other families with --only: rank 0's GPU runs them."
    )
    assert said_of_ranks(place, ("memory",)) == (
        "4 ranks on 2 hosts: what matches --only is measured; cases of one GPU on rank 0's."
    )
