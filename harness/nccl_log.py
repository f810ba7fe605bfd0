"""What NCCL's debug file says of its choices: algorithm, protocol, channels and transport. Floor 2, pure.

With NCCL_DEBUG=INFO and NCCL_DEBUG_SUBSYS=TUNING rank 0 writes a line for every collective that it enqueues. The forms
are those of NCCL's source, src/enqueue.cc and src/scheduler: since 2.24 with names and channels, before that with
numbers; kernels over symmetric memory (2.27 and later) have a form of their own. Sends and receives have no line. With
P2P, SHM and NET as further subsystems it writes a line for every channel that it connects (src/transport/*.cc).
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

# NCCL_DEBUG's most talkative lines are shorter; what is longer was not written by it.
_LONGEST_LINE = 2000

_FUNCTIONS = {
    "all_reduce": "AllReduce",
    "all_gather": "AllGather",
    "reduce_scatter": "ReduceScatter",
    "broadcast": "Broadcast",
    "reduce": "Reduce",
}
# NCCL_ALGO_* and NCCL_PROTO_* of src/include/nccl_common.h, for versions that print the number.
_ALGORITHMS = ("tree", "ring", "collnet_direct", "collnet_chain", "nvls", "nvls_tree", "pat")
_PROTOCOLS = ("ll", "ll128", "simple")

_CHOICE = re.compile(
    r"NCCL INFO (?:(?P<function>[A-Za-z]+): )?(?P<bytes>\d{1,16}) Bytes -> "
    r"Algo (?P<algorithm>\w+) proto (?P<protocol>\w+)"
    r"(?: channel\{Lo\.\.Hi\}=\{(?P<low>\d{1,4})\.\.(?P<high>\d{1,4})\})?"
)
_SYMMETRIC = re.compile(
    r"NCCL INFO (?P<function>[A-Za-z]+) \[Symmetric\]: (?P<bytes>\d{1,16}) Bytes -> "
    r"Kernel (?P<kernel>\w+) nchannels (?P<channels>\d{1,4})"
)
_TRANSPORT = re.compile(
    r"NCCL INFO Channel \d{1,3}(?:/\d{1,3})? ?: \d{1,6}\[[0-9a-f]+\] -> \d{1,6}\[[0-9a-f]+\] "
    r"(?:\[(?:send|receive)\] )?via (?P<kind>P2P|SHM|NET|COLLNET)/(?P<how>[^\n]{1,100})"
)
_FAILURE = re.compile(r"NCCL (?:WARN|ERROR)\s+(.*)$")


@dataclass(frozen=True)
class Choice:
    """How NCCL ran one collective. `function` is NCCL's name, empty where an old version leaves it out.

    `size_bytes` is as NCCL counts it: for all-gather and reduce-scatter one rank's part, in old versions the whole.
    """

    function: str
    size_bytes: int
    algorithm: str
    protocol: str
    channels: int | None


def choices(text: str) -> Iterator[Choice]:
    """Every choice in a debug file, in the order in which they were made."""
    for line in text.splitlines():
        if len(line) > _LONGEST_LINE:
            continue
        if match := _SYMMETRIC.search(line):
            yield Choice(match["function"], int(match["bytes"]), "symmetric", match["kernel"], int(match["channels"]))
        elif match := _CHOICE.search(line):
            channels = None if match["low"] is None else int(match["high"]) - int(match["low"]) + 1
            algorithm = _named(match["algorithm"], _ALGORITHMS)
            protocol = _named(match["protocol"], _PROTOCOLS)
            yield Choice(match["function"] or "", int(match["bytes"]), algorithm, protocol, channels)


def choice_of(text: str, op: str, size_bytes: int, ranks: int) -> Choice | None:
    """The last choice for an operation of that size, or `None` where the file holds none."""
    function = _FUNCTIONS.get(op)
    sizes = {size_bytes, size_bytes // ranks} if op in ("all_gather", "reduce_scatter") else {size_bytes}
    found = [c for c in choices(text) if c.function in (function, "") and c.size_bytes in sizes]
    return found[-1] if function and found else None


def transport_of(text: str) -> str:
    """How channels were connected: "p2p", "shm", "net/socket", "net/ib/gdrdma"; several with "+" between, "" unknown.

    The name after `net/` is that of the network or its plugin.
    """
    matches = (_TRANSPORT.search(line) for line in text.splitlines() if len(line) <= _LONGEST_LINE)
    return "+".join(sorted({_kind_of(match["kind"].lower(), match["how"]) for match in matches if match}))


def _kind_of(kind: str, how: str) -> str:
    if kind not in ("net", "collnet"):
        return kind
    name = re.sub(r"[^a-z0-9]+", "_", how.partition("/")[0].lower()).strip("_")
    return f"{kind}/{name}" + ("/gdrdma" if "/GDRDMA" in how else "")


def last_failure(text: str) -> str:
    """The last warning or error in a debug file, without host and process; "" where there is none."""
    lines = (match[1].strip() for line in text.splitlines()[-1000:] if (match := _FAILURE.search(line[:_LONGEST_LINE])))
    return next((line for line in reversed(list(lines)) if line), "")


def _named(said: str, names: tuple[str, ...]) -> str:
    """Names in small letters, numbers by their name; one that is not known stays a number."""
    if not said.isdecimal():
        return said.lower()
    return names[int(said)] if int(said) < len(names) else said
