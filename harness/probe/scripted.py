"""A device by the dotted path of its class, for the tests of everything that stands on a device; no torch here."""

import importlib

from harness.errors import HarnessError
from harness.probe.load import Device


def device_by_path(wanted: str) -> Device:
    """What the class of that path makes when it is called without arguments."""
    module, _, name = wanted.rpartition(".")
    try:
        make = getattr(importlib.import_module(module or wanted), name)
    except (ImportError, AttributeError) as error:
        raise HarnessError(f"no device '{wanted}': use auto, cpu, or the dotted path of a class ({error}).") from error
    device: Device = make()
    return device
