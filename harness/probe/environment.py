"""The conditions of a run as facts: versions, limits, clocks, host. Unknown is `None` with NVML's own words.

Never stored: host and user names, serial numbers, raw UUIDs, PCI addresses, process names and ids. A card is a hash
keyed with the site's key, so that the same card can be told again at the same site and nowhere else. Of the process
environment only the variables named in `software_facts` are read.

A fact's role decides what a comparison makes of it: `match` must be equal (what is set or installed), `informative`
may differ (what moves by itself: temperatures, counters, links at rest, neighbours, processes).
"""

import os
from pathlib import Path

from harness.model import DeviceFacts, Fact
from harness.probe.card_facts import card_facts, card_of, driver_facts
from harness.probe.facts import optional
from harness.probe.host_facts import host_facts
from harness.probe.identity import LABEL_VARIABLE, card_hash, site_key, site_key_hash
from harness.probe.link_facts import link_facts
from harness.probe.nvml import Gpu, Nvml
from harness.probe.software_facts import software_facts


def collect(
    nvml: Nvml | None, gpu: Gpu | None, uuid: str | None, numa_note: str, no_gpu: str, device: DeviceFacts | None = None
) -> dict[str, Fact]:
    """Every fact that can be read here, by name. `no_gpu` is the reason for the GPU's facts where there is none."""
    key = site_key()
    facts = {
        "site_key": Fact(site_key_hash(key), role="informative"),
        "card": Fact(card_hash(key, uuid)) if uuid else Fact(None, no_gpu),
        "label": optional(os.environ.get(LABEL_VARIABLE), "OFPEAK_LABEL is not set", "informative"),
        "boot": _boot(key),
        "numa": Fact(numa_note, role="informative"),
        **software_facts(os.environ),
        **host_facts(),
    }
    if nvml is None or gpu is None:
        return facts | {name: Fact(None, no_gpu) for name in ("driver", "power_limit_w", "ecc", "virtualization")}
    return facts | driver_facts(nvml) | gpu_facts(nvml, gpu, device)


def gpu_facts(nvml: Nvml, gpu: Gpu, device: DeviceFacts | None = None) -> dict[str, Fact]:
    """Every fact of one GPU. What `device` knows of it through CUDA stands beside what NVML tells."""
    card = card_of(gpu, device)
    return card_facts(card, device) | link_facts(card, nvml)


def _boot(key: bytes) -> Fact:
    """Which boot of the host this is, as a keyed hash: runs of one boot share what a reboot changes."""
    try:
        boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError as error:
        return Fact(None, error.strerror or "not readable", "informative")
    return Fact(card_hash(key, boot_id), role="informative")
