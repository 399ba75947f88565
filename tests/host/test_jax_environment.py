"""Environment variables that are set before JAX looks for devices: for fake devices, and for libtpu without a TPU."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from jaxspec.host import jax_environment


def test_threads_are_asked_for_where_there_are_several_devices(monkeypatch):
    monkeypatch.setattr(os, "environ", {"JAX_NUM_CPU_DEVICES": "8"})
    jax_environment.give_threads()
    assert os.environ["NPROC"] == "32"


def test_one_device_and_what_the_user_has_set_stay(monkeypatch):
    for given in ({}, {"JAX_NUM_CPU_DEVICES": "1"}, {"JAX_NUM_CPU_DEVICES": "8", "NPROC": "3"}):
        monkeypatch.setattr(os, "environ", dict(given))
        jax_environment.give_threads()
        assert os.environ == given


def test_commands_say_nothing_of_libtpu():
    pytest.importorskip("libtpu")
    free = {
        name: value for name, value in os.environ.items() if name not in ("JAX_PLATFORMS", *jax_environment.ANY_CHIP)
    }
    command = [sys.executable, "-m", "jaxspec.commands.main", "env"]
    found = subprocess.run(command, env=free, capture_output=True, text=True, check=True)
    assert "device" in found.stdout
    assert found.stderr == ""


def test_where_a_chip_is_attached_or_the_user_has_spoken_nothing_is_set(tmp_path: Path, monkeypatch):
    (tmp_path / "0").mkdir()
    (tmp_path / "0" / "vendor").write_text("0x1ae0\n")
    monkeypatch.setattr(jax_environment, "DEVICES", tmp_path)
    for name in jax_environment.ANY_CHIP:
        monkeypatch.delenv(name, raising=False)
    jax_environment.expect_no_chip()
    assert not jax_environment.ANY_CHIP.keys() & os.environ.keys()

    (tmp_path / "0" / "vendor").write_text("0x8086\n")
    monkeypatch.setenv("TPU_ACCELERATOR_TYPE", "mine")
    monkeypatch.setattr(os, "environ", dict(os.environ))
    jax_environment.expect_no_chip()
    assert os.environ["TPU_ACCELERATOR_TYPE"] == "mine"
    assert os.environ["TPU_SKIP_MDS_QUERY"] == "1"
