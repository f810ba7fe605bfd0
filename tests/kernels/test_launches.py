"""The order in which a launch is captured, and what a call that waits waits for."""

from contextlib import contextmanager

import torch

from kernels import launches


def test_launch_has_run_before_it_is_captured_and_is_replayed_after(monkeypatch):
    told = []

    class Graph:
        """What CUDA would record."""

        def capture_begin(self):
            told.append("begin")

        def capture_end(self):
            told.append("end")

        def replay(self):
            told.append("replay")

    @contextmanager
    def on(stream):
        told.append(f"on {stream}")
        yield

    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: told.append("synchronize"))
    monkeypatch.setattr(torch.cuda, "Stream", lambda: "a side stream")
    monkeypatch.setattr(torch.cuda, "stream", on)
    launches.captured(lambda: told.append("launch"))()
    assert told == ["launch", "synchronize", "on a side stream", "begin", "launch", "end", "replay"]


def test_call_returns_when_the_launch_is_done(monkeypatch):
    told = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: told.append("synchronize"))
    launches.until_done(lambda: told.append("launch"))()
    assert told == ["launch", "synchronize"]
