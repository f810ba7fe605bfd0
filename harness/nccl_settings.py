"""NCCL's settings as parameters of a case: the variables that its ranks get, and whether NCCL followed. Floor 2, pure.

`nccl_algo=Ring` in a key is NCCL_ALGO=Ring for the ranks of that case alone, in processes of their own
(`world=own`), since NCCL reads its variables once. Names and values are those of NCCL's documentation, "Environment
Variables"; NCCL may ignore what it cannot do (up to 2.23) or refuse it (from 2.24 on), so that its debug file counts.
"""

import re
from collections.abc import Callable, Mapping

from harness.model import Case, Telemetry

_PREFIX = "nccl_"
# Who sets these says which algorithm runs, so that nothing is left to compare with.
_CHOOSING = ("NCCL_ALGO", "NCCL_PROTO")
_SAME_AS = {"NCCL_P2P_LEVEL": "NCCL_P2P_DISABLE"}
# src/enqueue.cc, from 2.24 on.
_REFUSAL = re.compile(r"no algorithm/protocol available[^;(\n]{0,300}")


def has_own_world(case: Case) -> bool:
    """Whether the case runs in ranks that are started for its settings alone; whoever sets anything does."""
    return case.params.get("world") == "own" or bool(settings_of(case))


def settings_of(case: Case) -> dict[str, str]:
    """The variables that a case sets for its ranks; those at their default are left as they are."""
    return {
        name.upper(): str(value)
        for name, value in sorted(case.params.items())
        if name.startswith(_PREFIX) and case.defaults.get(name) != value
    }


def words_of(settings: Mapping[str, str]) -> str:
    """`NCCL_ALGO=Tree NCCL_PROTO=LL`, or `default`."""
    return " ".join(f"{name}={value}" for name, value in settings.items()) or "default"


def is_followed(case: Case, telemetry: Telemetry) -> bool | None:
    """Whether NCCL did what the case asks; `None` where its debug file does not tell. Who asks nothing is followed."""
    told = [_followed(name, value, telemetry) for name, value in settings_of(case).items()]
    return False if False in told else None if None in told else True


def asked_and_done(case: Case, telemetry: Telemetry) -> str:
    """What was asked and what NCCL did, for a sentence."""
    choice = f"{telemetry.algorithm or 'an unknown algorithm'} {telemetry.protocol}".rstrip()
    return f"{words_of(settings_of(case))} was asked, NCCL ran {choice} over {telemetry.transport or 'unknown links'}"


def warning_of(case: Case, telemetry: Telemetry) -> str:
    """What a reader must know where NCCL did not, or may not have done, what the key says; "" where it did."""
    followed = is_followed(case, telemetry)
    if followed:
        return ""
    unknown = "Whether that is what was asked is not known."
    judged = unknown if followed is None else "It is no figure of that setting."
    return f"other setting: {asked_and_done(case, telemetry)}. {judged}"


def refusal_of(error: str) -> str:
    """NCCL's words in an error where it refused a setting; "" where something else went wrong."""
    found = _REFUSAL.findall(error)  # torch's words come first and may be cut, the debug file's last
    return found[-1].strip() if found else ""


def set_outside(case: Case, environment: Mapping[str, str]) -> str:
    """What the operator set that a sweep would change or has as its default; "" where nothing is in its way."""
    own = settings_of(case)
    names = dict.fromkeys([*_CHOOSING, *own, *(_SAME_AS[name] for name in own if name in _SAME_AS)])
    return words_of({n: environment[n] for n in names if n in environment}) if names & environment.keys() else ""


def _followed(name: str, value: str, telemetry: Telemetry) -> bool | None:
    check = _CHECKS.get((name, value)) or _CHECKS.get((name, ""))
    return check(value, telemetry) if check else None


def _is_algorithm(value: str, telemetry: Telemetry) -> bool | None:
    return telemetry.algorithm.replace("_", "") == value.lower() if telemetry.algorithm else None


def _is_protocol(value: str, telemetry: Telemetry) -> bool | None:
    return telemetry.protocol == value.lower() if telemetry.protocol else None


def _goes(part: str, expected: bool) -> Callable[[str, Telemetry], bool | None]:
    """Whether the transport holds that part, as it should or should not."""
    return lambda _, telemetry: (part in telemetry.transport) == expected if telemetry.transport else None


_CHECKS: Mapping[tuple[str, str], Callable[[str, Telemetry], bool | None]] = {
    ("NCCL_ALGO", ""): _is_algorithm,
    ("NCCL_PROTO", ""): _is_protocol,
    ("NCCL_P2P_LEVEL", "LOC"): _goes("p2p", False),
    ("NCCL_IB_DISABLE", "1"): _goes("net/ib", False),
    ("NCCL_NET_GDR_LEVEL", "LOC"): _goes("gdrdma", False),
    ("NCCL_NET_GDR_LEVEL", "SYS"): _goes("gdrdma", True),
}
