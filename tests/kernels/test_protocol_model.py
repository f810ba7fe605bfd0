"""The kernels' protocols over many schedules: right back to back, and wrong or stuck without what they rest on."""

from functools import partial

import pytest

from tests.kernels.protocol_model import DeadlockError, play, pull, push, share

SCHEDULES = range(150)


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("protocol", [push, pull, share], ids=lambda protocol: protocol.__name__)
def test_no_rank_reads_what_is_not_yet_or_no_longer_there(protocol, ranks):
    assert sum(play(protocol, seed, ranks=ranks) for seed in SCHEDULES) == 0


@pytest.mark.parametrize(
    "protocol",
    [
        partial(push, places=1),
        partial(pull, meets_again=False),
        partial(share, meets_again=False),
        partial(share, releases=False),
    ],
    ids=[
        "push with one place",
        "pull without its end",
        "share without its end",
        "share with a signal that overtakes",
    ],
)
def test_protocol_without_what_it_rests_on_is_seen_to_be_wrong(protocol):
    assert any(wrong_or_stuck(protocol, seed) for seed in SCHEDULES)


@pytest.mark.parametrize("protocol", [partial(push, places=1), partial(pull, meets_again=False)])
def test_protocol_that_guards_no_exit_is_right_once(protocol):
    """So that only launches in a row on new data can find it."""
    assert not any(wrong_or_stuck(protocol, seed, launches=1) for seed in SCHEDULES)


def wrong_or_stuck(protocol, seed, **how):
    try:
        return play(protocol, seed, **how) > 0
    except DeadlockError:
        return True


@pytest.mark.parametrize("protocol", [push, pull, share], ids=lambda protocol: protocol.__name__)
def test_blocks_that_start_in_their_order_never_wait_for_ever(protocol):
    """Blocks wait for those of the same number alone: the lowest that is not done runs on every rank."""
    assert sum(play(protocol, seed, ranks=3, blocks=5, resident=2) for seed in SCHEDULES) == 0


@pytest.mark.parametrize("protocol", [push, pull, share], ids=lambda protocol: protocol.__name__)
def test_grid_that_does_not_fit_and_starts_in_any_order_can_wait_for_ever(protocol):
    stuck = 0
    for seed in SCHEDULES:
        try:
            play(protocol, seed, blocks=5, resident=2, in_order=False)
        except DeadlockError:
            stuck += 1
    assert stuck > 0
