"""Line rates as a host's kernel tells them, from a /sys made for it."""

from pathlib import Path

import pytest

from harness.probe.network import network_of


def port(root: Path, name: str, rate: str, state: str = "4: ACTIVE", link_layer: str = "InfiniBand") -> None:
    device, _, number = name.partition(":")
    folder = root / "sys/class/infiniband" / device / "ports" / number
    folder.mkdir(parents=True)
    for file, text in {"rate": rate, "state": state, "link_layer": link_layer}.items():
        (folder / file).write_text(text + "\n")


def interface(root: Path, name: str, speed: str, operstate: str = "up", is_hardware: bool = True) -> None:
    folder = root / "sys/class/net" / name
    folder.mkdir(parents=True)
    (folder / "speed").write_text(speed + "\n")
    (folder / "operstate").write_text(operstate + "\n")
    if is_hardware:
        (folder / "device").mkdir()


@pytest.fixture
def eight(tmp_path: Path) -> Path:
    for number in range(8):
        port(tmp_path, f"mlx5_{number}:1", "400 Gb/sec (4X NDR)")
    port(tmp_path, "mlx5_8:1", "100 Gb/sec (4X EDR)", link_layer="Ethernet")
    port(tmp_path, "mlx5_9:1", "400 Gb/sec (4X NDR)", state="1: DOWN")
    interface(tmp_path, "eth0", "100000")
    return tmp_path


def test_rates_of_all_active_ports_add_up(eight: Path):
    told = network_of(eight, {})
    assert told.bytes_per_s == (8 * 400 + 100) * 1e9 / 8
    assert told.words == "1 x 100 Gb/s RoCE, 8 x 400 Gb/s InfiniBand"


@pytest.mark.parametrize(
    ("wanted", "gigabit_per_s"),
    [
        ("mlx5_0,mlx5_1", 800),
        ("mlx5_0:1", 400),
        ("^mlx5_8", 3200),
        ("=mlx5_8:1", 100),
        ("^=mlx5_8,mlx5_7", 2800),
        ("mlx5", 3300),
    ],
)
def test_only_ports_that_nccl_may_use_count(eight: Path, wanted: str, gigabit_per_s: int):
    assert network_of(eight, {"NCCL_IB_HCA": wanted}).bytes_per_s == gigabit_per_s * 1e9 / 8


def test_variable_that_leaves_no_port_leaves_the_rate_unknown(eight: Path):
    told = network_of(eight, {"NCCL_IB_HCA": "mlx4"})
    assert (told.bytes_per_s, told.reason) == (
        None,
        "NCCL_IB_HCA leaves none of the 9 network ports that tell their speed",
    )


def test_without_infiniband_the_interfaces_count(eight: Path):
    assert network_of(eight, {"NCCL_IB_DISABLE": "1"}).words == "1 x 100 Gb/s Ethernet"
    assert network_of(eight, {"NCCL_IB_DISABLE": "1", "NCCL_SOCKET_IFNAME": "=eth0"}).bytes_per_s == 100e9 / 8


def test_speed_of_what_is_virtual_down_or_silent_is_none(tmp_path: Path):
    """A veth says 10000 Mb/s, whatever carries it."""
    interface(tmp_path, "veth0", "10000", is_hardware=False)
    interface(tmp_path, "eth1", "25000", operstate="down")
    interface(tmp_path, "eth2", "-1")
    told = network_of(tmp_path, {})
    assert (told.bytes_per_s, told.reason) == (None, "no network port here tells its speed")
