"""Bodies that ranks run in the tests: what works, and rank 1 going wrong while rank 0 waits for it in a collective."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from kernels.collectives import AllReduce, Barrier
from kernels.overlap import Gemm, Step, TwoThreads


class Sum:
    """One all-reduce of each rank's own number; `fault` says what rank 1 does instead."""

    def __init__(self, rank: int, ranks: int, fault: str) -> None:
        self._rank, self._ranks, self._fault = rank, ranks, fault

    def fill(self, seed: int) -> None:
        self._value = torch.tensor([float(seed + self._rank)])
        self._expected = sum(seed + rank for rank in range(self._ranks))
        if self._rank == 1 and self._fault == "raises":
            raise RuntimeError("this rank\nis broken")
        if self._rank == 1 and self._fault == "dies":
            os._exit(7)
        if self._rank == 1 and self._fault in ("hangs", "hangs alone"):
            time.sleep(60)
        dist.all_reduce(self._value)

    def wrong_elements(self) -> int:
        return int(self._value.item() != self._expected)


def sums(device: str, rank: int, ranks: int, fault: str = "") -> Sum:
    return Sum(rank, ranks, fault)


class HastySum(AllReduce):
    """An all-reduce through a shared file that skips its exit barrier, so that the next data overtake slow readers.

    Right once, wrong back to back: rank 1 reads late, and what rank 0 does next it does at once.
    """

    def __init__(self, device: str, rank: int, ranks: int, folder: str) -> None:
        super().__init__(device, rank, ranks, 64, "fp32")
        path = Path(folder) / "shared"
        dist.barrier()
        self._shared = torch.from_file(str(path), shared=True, size=ranks * self._part).view(ranks, -1)
        dist.barrier()

    def launch(self, _: int) -> None:
        self._shared[self.rank] = self.result
        dist.barrier()
        time.sleep(0.01 * self.rank)
        self.result.copy_(self._shared.double().sum(0))


def hasty_sums(device: str, rank: int, ranks: int, folder: str) -> HastySum:
    return HastySum(device, rank, ranks, folder)


class HastyLanes(TwoThreads):
    """Lanes that say that both have ended as soon as the GEMM has, and wait once the results were counted.

    Without that the late collective would meet the next one of another kind, and gloo ends the process.
    """

    def join(self) -> None:
        pass

    def after(self, count: Callable[[int], int]) -> Callable[[int], int]:
        def counted(launches: int) -> int:
            wrong = count(launches)
            super(HastyLanes, self).join()
            return wrong

        return counted


class LazyGemm(Gemm):
    """A GEMM that leaves every other result as it was."""

    def launch(self, i: int) -> None:
        if i % 2 == 0:
            super().launch(i)


def hasty_step(device: str, rank: int, ranks: int, **how: Any) -> Step:
    made = Step(device, rank, ranks, **how)
    made._lanes = lanes = HastyLanes(ranks)
    made._collective.wrong_after = lanes.after(made._collective.wrong_after)  # type: ignore[method-assign]
    return made


def lazy_step(device: str, rank: int, ranks: int, **how: Any) -> Step:
    made = Step(device, rank, ranks, **how)
    made._gemm = LazyGemm(device, rank, *how["shape"], how["dtype"])
    return made


class HastyBarrier(Barrier):
    """A barrier that waits for nobody."""

    def launch(self, _: int) -> None:
        pass


def hasty_barrier(device: str, rank: int, ranks: int) -> HastyBarrier:
    return HastyBarrier(device, rank, ranks)


class Waiting(Sum):
    """Rank 1 says that it waits, then does not come; what its test does to it meanwhile is its own affair."""

    def __init__(self, rank: int, ranks: int, file: str) -> None:
        super().__init__(rank, ranks, "")
        self._file = Path(file)

    def fill(self, seed: int) -> None:
        if self._rank == 1:
            self._file.touch()
            time.sleep(120)
        super().fill(seed)


def waiting(device: str, rank: int, ranks: int, file: str) -> Waiting:
    return Waiting(rank, ranks, file)


def code_of_this_process() -> dict[str, str]:
    """Other code on every rank."""
    return {"ofpeak": "0.1.0", "source": str(os.getpid())}


_REFUSAL = "no algorithm/protocol available for function AllReduce with datatype ncclFloat32. NCCL_ALGO was set to PAT."


class LikeNccl(AllReduce):
    """An all-reduce over gloo that takes NCCL's variables from its process and writes NCCL's debug file.

    It refuses NCCL_ALGO=PAT, and above 64 bytes it runs a ring whatever is asked. What the process is goes to
    OFPEAK_TEST_STARTS.
    """

    def __init__(self, device: str, rank: int, ranks: int, size_bytes: int) -> None:
        super().__init__(device, rank, ranks, size_bytes, "fp32")
        self._algorithm = os.environ.get("NCCL_ALGO", "Ring")
        with Path(os.environ["OFPEAK_TEST_STARTS"]).open("a") as file:
            file.write(f"{os.getpid()} {self._algorithm} {size_bytes} {os.environ['NCCL_DEBUG_SUBSYS']}\n")
        self._log("Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM")

    def launch(self, _: int) -> None:
        if self._algorithm == "PAT":
            raise RuntimeError(_REFUSAL)
        ran = self._algorithm.upper() if self.size_bytes <= 64 else "RING"
        self._log(f"AllReduce: {self.size_bytes} Bytes -> Algo {ran} proto SIMPLE channel{{Lo..Hi}}={{0..3}}")
        dist.all_reduce(self.result)

    def _log(self, line: str) -> None:
        with Path(os.environ["NCCL_DEBUG_FILE"]).open("a") as file:
            file.write(f"node:{os.getpid()}:1 [{self.rank}] NCCL INFO {line}\n")


def like_nccl(device: str, rank: int, ranks: int, size_bytes: int) -> LikeNccl:
    return LikeNccl(device, rank, ranks, size_bytes)
