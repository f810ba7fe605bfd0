"""What the guard clears up is what was held and not given back."""

import os
import signal
import subprocess
from pathlib import Path

from harness.guard import clear_up, still_held


def test_only_what_was_not_dropped_is_held():
    lines = ["hold folder /tmp/a b\n", "hold group 12\n", "drop group 12\n", "hold group 13\n", "drop group 99\n"]
    assert still_held(lines) == [("folder", "/tmp/a b"), ("group", "13")]


def test_a_group_ends_and_a_folder_goes(tmp_path: Path):
    folder = tmp_path / "scratch"
    (folder / "inside").mkdir(parents=True)
    process = subprocess.Popen(["sleep", "60"], start_new_session=True)
    clear_up([("folder", str(folder)), ("group", str(process.pid)), ("group", str(process.pid))])
    assert process.wait(5.0) == -signal.SIGKILL
    assert os.listdir(tmp_path) == []  # noqa: PTH208  # hidden files count too
    clear_up([("folder", str(folder)), ("group", str(process.pid))])  # gone already
