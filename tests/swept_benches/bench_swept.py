"""Settings as the sweep has them, over gloo: followed, left alone and refused. See LikeNccl in tests.process."""

from harness.model import Case, Work

DEFAULTS = {"nccl_algo": "default"}


def cases(profile, device):
    for setting in ({}, {"nccl_algo": "Tree"}, {"nccl_algo": "PAT"}):
        for size in (64, 4096):
            params = {"bytes": size, "dtype": "fp32", "impl": "nccl", "ranks": 2, "world": "own", **DEFAULTS, **setting}
            yield Case("all_reduce", params, (Work(size, "B", "nvlink", "bus"),), defaults=DEFAULTS)


def bench_swept(case, device, measure):
    measure("tests.process.rank_bodies.like_nccl", size_bytes=case.params["bytes"])
