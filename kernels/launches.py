"""What a single call is made of: a launch replayed from a graph, and one that the host waits for."""

from collections.abc import Callable

import torch

Launch = Callable[[], object]


def captured(launch: Launch) -> Launch:
    """The replay of a graph of that launch: what it allocates stays where it was captured."""
    launch()  # a first launch may compile, which must not fall into a capture
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    # Not `torch.cuda.graph`, which empties torch's cache for each of a hundred graphs.
    with torch.cuda.stream(torch.cuda.Stream()):
        graph.capture_begin()
        launch()
        graph.capture_end()
    return graph.replay


def until_done(launch: Launch) -> Launch:
    """A launch on a GPU that the host waits for."""

    def call() -> None:
        launch()
        torch.cuda.synchronize()

    return call
