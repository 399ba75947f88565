"""One of two processes fails, is terminated or is killed: both end within a minute, and the reason is printed once."""

import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.host.multihost import start


def begun(how: str, folder: Path) -> list[subprocess.Popen]:
    """Two processes that wait for each other again and again."""
    running = start([("together", how, folder)], devices=1)
    while len([*folder.glob(f"{how}-*")]) < 2:
        assert all(process.poll() is None for process in running), [process.communicate() for process in running]
        time.sleep(0.05)
    return running


def ended(running: list[subprocess.Popen]) -> tuple[list[int], str]:
    """Exit codes and stderr of both processes."""
    began = time.monotonic()
    stderr = [process.communicate(timeout=60)[1] for process in running]
    assert time.monotonic() - began < 60
    return [process.returncode for process in running], "".join(stderr)


def test_one_raises(tmp_path: Path):
    codes, stderr = ended(begun("raises", tmp_path))
    assert codes == [2, 2]
    assert stderr.count("there is something wrong here alone") == 1
    assert stderr.count("error: ") == 1
    assert not [*tmp_path.glob(".*.part")]


@pytest.mark.parametrize("which", [pytest.param(0, marks=pytest.mark.soak), 1])
def test_one_is_terminated(tmp_path: Path, which: int):
    running = begun("goes-on", tmp_path)
    running[which].send_signal(signal.SIGTERM)
    codes, stderr = ended(running)
    assert codes == [143, 143]
    assert stderr.count("terminated") == 1
    assert not [*tmp_path.glob(".*.part")]


@pytest.mark.parametrize("which", [0, pytest.param(1, marks=pytest.mark.soak)])
def test_one_is_killed(tmp_path: Path, which: int):
    running = begun("goes-on", tmp_path)
    running[which].kill()
    codes, stderr = ended(running)
    assert codes[which] == -signal.SIGKILL
    if which == 1:
        assert codes[0] == 1
        assert stderr.count("error: ") == stderr.count("another process ended without an error message") == 1
    else:  # the store is gone with the first process, and JAX ends the others
        assert codes[1] not in (0, 2)
        assert "Socket closed" in stderr or "Connection reset by peer" in stderr
