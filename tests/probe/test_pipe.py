"""The resident loop as arithmetic, with a processor in the place of the SMs."""

import math

import pytest
import torch

from harness.probe.pipe import LEAST_CAPABILITY, TILES, ResidentLoop, Tile


class HostLoop(ResidentLoop):
    """The loop's products by torch; `skips` of them are left out, as a compiler might."""

    def __init__(self, dtype="bf16", capability=(9, 0), skips=0):
        super().__init__(dtype, 2, capability, "cpu")
        self.skips = skips

    def launch(self, iterations):
        """Every program's sum."""
        product = self.a.float() @ self.b.float().t()
        self.out[:] = (iterations - self.skips) * product
        self._stamps[:] = torch.tensor([[7, 100, 1000, 1700, 2000], [8, 200, 1000, 1800, 2000]])


def test_product_of_a_tile_is_two_flop_for_each_m_n_and_k():
    assert Tile(2, 3, 5, 4).flop == 60


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp8"])
def test_launch_is_that_on_every_sm_and_so_often(dtype):
    loop = HostLoop(dtype)
    assert loop.flop(10) == 2 * 10 * TILES["hopper", dtype].flop


@pytest.mark.parametrize(("capability", "kind"), [((9, 0), "hopper"), ((8, 0), "other"), ((10, 0), "other")])
def test_tile_is_the_large_one_only_where_it_was_seen_to_fill_the_pipe(capability, kind):
    assert HostLoop(capability=capability).tile == TILES[kind, "bf16"]


@pytest.mark.parametrize("dtype", list(LEAST_CAPABILITY))
def test_right_products_are_right(dtype):
    assert HostLoop(dtype).sqnr_db() > 100


@pytest.mark.parametrize(("skips", "sqnr_db"), [(1, 20 * math.log10(3)), (3, 0.0)])
def test_loop_that_was_shortened_is_far_off(skips, sqnr_db):
    assert HostLoop(skips=skips).sqnr_db() == pytest.approx(sqnr_db, abs=1e-3)


def test_product_that_is_not_finite_is_never_right():
    loop = HostLoop()
    loop.a[0, 0] = math.nan
    assert not loop.sqnr_db() >= 40.0


def test_stamps_are_what_each_sm_counted_before_and_after():
    loop = HostLoop()
    loop.launch(1)
    assert loop.stamps() == ({7: (100, 1000), 8: (200, 1000)}, {7: (1700, 2000), 8: (1800, 2000)})
