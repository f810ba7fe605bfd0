"""NCCL's settings in a key: what ranks get, and whether the debug file shows that NCCL followed."""

import pytest

from harness.model import Case, Telemetry, Work
from harness.nccl_settings import (
    has_own_world,
    is_followed,
    refusal_of,
    set_outside,
    settings_of,
    words_of,
)


def swept(**settings: str) -> Case:
    defaults = dict.fromkeys(("nccl_algo", "nccl_proto", "nccl_p2p_level"), "default")
    params = {"bytes": 8, "impl": "nccl", "ranks": 2, "world": "own", **defaults, **settings}
    return Case("all_reduce", params, (Work(8.0, "B", None, "bus"),), defaults=defaults)


def test_only_what_is_not_at_its_default_is_set():
    assert settings_of(swept(nccl_proto="LL", nccl_algo="Tree")) == {"NCCL_ALGO": "Tree", "NCCL_PROTO": "LL"}
    assert settings_of(swept()) == {}
    assert words_of(settings_of(swept(nccl_proto="LL", nccl_algo="Tree"))) == "NCCL_ALGO=Tree NCCL_PROTO=LL"
    assert words_of(settings_of(swept())) == "default"


def test_own_world_is_asked_for_in_the_key_and_whoever_sets_anything_has_one():
    assert has_own_world(swept())
    assert has_own_world(Case("all_reduce", {"nccl_algo": "Tree", "ranks": 2}, (Work(8.0, "B", None, "bus"),)))
    assert not has_own_world(Case("all_reduce", {"ranks": 2}, (Work(8.0, "B", None, "bus"),)))


RING = Telemetry(algorithm="ring", protocol="ll128", transport="p2p")


@pytest.mark.parametrize(
    ("settings", "telemetry", "followed"),
    [
        ({}, Telemetry(), True),
        ({"nccl_algo": "Ring"}, RING, True),
        ({"nccl_algo": "Tree"}, RING, False),
        ({"nccl_algo": "Ring"}, Telemetry(), None),
        ({"nccl_algo": "Ring", "nccl_proto": "LL128"}, RING, True),
        ({"nccl_algo": "Ring", "nccl_proto": "LL"}, RING, False),
        ({"nccl_algo": "Tree", "nccl_proto": "LL"}, Telemetry(algorithm="ring"), False),
        ({"nccl_algo": "CollnetDirect"}, Telemetry(algorithm="collnet_direct"), True),
        ({"nccl_p2p_level": "LOC"}, Telemetry(transport="shm"), True),
        ({"nccl_p2p_level": "LOC"}, RING, False),
        ({"nccl_p2p_level": "LOC"}, Telemetry(algorithm="ring"), None),
        ({"nccl_p2p_level": "SYS"}, RING, None),
        ({"nccl_ib_disable": "1"}, Telemetry(transport="net/socket+p2p"), True),
        ({"nccl_ib_disable": "1"}, Telemetry(transport="net/ib+p2p"), False),
        ({"nccl_net_gdr_level": "LOC"}, Telemetry(transport="net/ib+p2p"), True),
        ({"nccl_net_gdr_level": "SYS"}, Telemetry(transport="net/ib/gdrdma+p2p"), True),
        ({"nccl_net_gdr_level": "SYS"}, Telemetry(transport="net/ib"), False),
    ],
)
def test_setting_is_followed_where_the_debug_file_shows_it(settings, telemetry: Telemetry, followed: bool | None):
    assert is_followed(swept(**settings), telemetry) is followed


def test_refusal_is_told_in_nccls_words_and_other_faults_are_none():
    told = (
        "rank 0 of 2 failed in 'check': DistBackendError: NCCL error, invalid usage. Last error: Error : no "
        "algorithm/protocol available for func (distributed_c10d.py:83); NCCL of rank 0: Error : no "
        "algorithm/protocol available for function AllReduce with datatype ncclFloat32. NCCL_ALGO was set to PAT.; x"
    )
    assert refusal_of(told) == (
        "no algorithm/protocol available for function AllReduce with datatype ncclFloat32. NCCL_ALGO was set to PAT."
    )
    assert refusal_of("rank 1 of 2 died in 'check' (exit code 7)") == ""


@pytest.mark.parametrize(
    ("settings", "environment", "outside"),
    [
        ({}, {"PATH": "/bin", "NCCL_NVLS_ENABLE": "0"}, ""),
        ({}, {"NCCL_ALGO": "Ring"}, "NCCL_ALGO=Ring"),
        ({"nccl_algo": "Tree"}, {"NCCL_PROTO": "LL"}, "NCCL_PROTO=LL"),
        ({"nccl_p2p_level": "LOC"}, {"NCCL_P2P_DISABLE": "1"}, "NCCL_P2P_DISABLE=1"),
        ({"nccl_algo": "Tree"}, {"NCCL_P2P_DISABLE": "1"}, ""),
    ],
)
def test_what_the_operator_set_is_in_the_way_of_what_would_change_it(settings, environment, outside: str):
    assert set_outside(swept(**settings), environment) == outside
