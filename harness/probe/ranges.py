"""A range with a case's key around all that it does, for profilers; without one attached it costs two calls a case."""

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def named_range(key: str, is_cuda: bool) -> Iterator[None]:
    """An NVTX range on this thread, pushed before a case's first launch and popped after its last, never between them.

    Where torch was built without NVTX there is none.
    """
    if not is_cuda:
        yield
        return
    from torch.cuda import nvtx

    try:
        nvtx.range_push(key)
    except RuntimeError:  # torch's word for a build without NVTX
        yield
        return
    try:
        yield
    finally:
        nvtx.range_pop()
