"""Threads of XLA for devices that are one CPU."""

import os

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
