"""NCCL's debug file: its lines as its versions print them, with host and process made up."""

import pytest

from harness.nccl_log import Choice, choice_of, choices, last_failure, transport_of

# The forms of 2.24 to 2.28 (src/enqueue.cc), of later versions with the cluster size, and of 2.27's symmetric kernels.
NAMED = """
n:1:1 [0] NCCL INFO AllReduce: 4 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..0}
n:1:1 [0] NCCL INFO AllReduce: 33554432 Bytes -> Algo RING proto SIMPLE channel{Lo..Hi}={0..23}
n:1:1 [0] NCCL INFO AllGather: 16384 Bytes -> Algo RING proto LL128 channel{Lo..Hi}={0..3} comm 0x55a7a339db50
n:1:1 [0] NCCL INFO AllReduce: 268435456 Bytes -> Algo NVLS_TREE proto SIMPLE channel{Lo..Hi}={0..15} cgaClusterSize 4
n:1:1 [0] NCCL INFO AllReduce [Symmetric]: 4096 Bytes -> Kernel AllReduce_AGxLL_R nchannels 16 nthreads 512 nWorks 1
n:1:1 [0] NCCL INFO ReduceScatter: 512 Bytes -> Algo PAT proto SIMPLE channel{Lo..Hi}={0..0}
"""
# The form up to 2.23 (issue #1453 of NVIDIA/nccl shows it).
NUMBERED = """
node:497888:497888 [0] NCCL INFO 262144 Bytes -> Algo 0 proto 1 time 54.707825
node:278:278 [0] NCCL INFO AllGather: 37756928 Bytes -> Algo 1 proto 2 time 2860.208008
node:278:278 [0] NCCL INFO AllReduce: 64 Bytes -> Algo 9 proto 2 time 1.0
"""


def test_names_and_channels_of_every_line():
    assert list(choices(NAMED)) == [
        Choice("AllReduce", 4, "ring", "ll", 1),
        Choice("AllReduce", 33554432, "ring", "simple", 24),
        Choice("AllGather", 16384, "ring", "ll128", 4),
        Choice("AllReduce", 268435456, "nvls_tree", "simple", 16),
        Choice("AllReduce", 4096, "symmetric", "AllReduce_AGxLL_R", 16),
        Choice("ReduceScatter", 512, "pat", "simple", 1),
    ]


def test_numbers_of_old_versions_are_named_and_unknown_ones_stay_numbers():
    assert list(choices(NUMBERED)) == [
        Choice("", 262144, "tree", "ll128", None),
        Choice("AllGather", 37756928, "ring", "simple", None),
        Choice("AllReduce", 64, "9", "simple", None),
    ]


@pytest.mark.parametrize(
    ("op", "size_bytes", "algorithm"),
    [
        ("all_reduce", 33554432, "ring"),
        ("all_reduce", 268435456, "nvls_tree"),
        ("all_gather", 32768, "ring"),  # NCCL counts one rank's part
        ("reduce_scatter", 1024, "pat"),
        ("all_reduce", 8, None),
        ("broadcast", 4, None),
        ("send_recv", 4, None),
    ],
)
def test_choice_is_that_of_the_operation_and_its_size(op: str, size_bytes: int, algorithm: str | None):
    found = choice_of(NAMED, op, size_bytes, 2)
    assert (found.algorithm if found else None) == algorithm


def test_last_of_several_choices_counts():
    later = NAMED + "node:1:1 [0] NCCL INFO AllReduce: 33554432 Bytes -> Algo TREE proto LL channel{Lo..Hi}={0..1}\n"
    assert choice_of(later, "all_reduce", 33554432, 2) == Choice("AllReduce", 33554432, "tree", "ll", 2)


def test_line_without_function_counts_by_its_size():
    assert choice_of(NUMBERED, "all_reduce", 262144, 2) == Choice("", 262144, "tree", "ll128", None)


def test_foreign_and_overlong_lines_are_left_alone():
    foreign = "x" * 3000 + NAMED.splitlines()[1] + "\nAllReduce: 4 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..0}\n"
    assert list(choices(foreign)) == []


# src/transport/p2p.cc, shm.cc and net.cc.
@pytest.mark.parametrize(
    ("lines", "transport"),
    [
        (["Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/read", "Channel 23/0 : 0[0] -> 1[1] via P2P/IPC"], "p2p"),
        (["Channel 00 : 0[0] -> 1[1] via SHM/direct/direct"], "shm"),
        (["Channel 00/0 : 0[0] -> 8[0] [send] via NET/IB/3(2)/GDRDMA(PCI)/Shared"], "net/ib/gdrdma"),
        (["Channel 01/0 : 8[0] -> 0[0] [receive] via NET/Socket/0"], "net/socket"),
        (["Channel 01/0 : 8[0] -> 0[0] [receive] via NET/AWS Libfabric/0/GDRDMA"], "net/aws_libfabric/gdrdma"),
        (
            ["Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM", "Channel 00/0 : 1[1] -> 2[2] [send] via NET/IB/0"],
            "net/ib+p2p",
        ),
        (["Channel 00/24 :    0   1", "Connected all rings"], ""),
    ],
)
def test_transport_is_what_channels_were_connected_through(lines: list[str], transport: str):
    assert transport_of("".join(f"node:608:615 [0] NCCL INFO {line}\n" for line in lines)) == transport


def test_last_warning_is_told_without_host_and_process():
    text = """
n:1:1 [0] NCCL INFO cudaDriverVersion 13000
node:608:615 [0] misc/shmutils.cc:87 NCCL WARN Error: failed to extend /dev/shm/nccl-x to 9637892 bytes, error: No space
node:608:615 [0] NCCL INFO proxy.cc:1458 -> 2
"""
    assert last_failure(text) == "Error: failed to extend /dev/shm/nccl-x to 9637892 bytes, error: No space"
    assert last_failure("") == ""
