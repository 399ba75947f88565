"""Conversions are killed at each of their writes, and meet a full disk and one that can only be read.

Afterwards there is the complete output or none (of a file that was there before, the old one), and the same command,
given again, finishes the work.
"""

import shutil
from pathlib import Path

import pytest

from tests import checkpoints, hf_models
from tests.convert import published_heads
from tests.host.interrupted_commands import Breaker, Work, refuses, survives_every_kill, writes_of
from tests.host.interrupting_program import How, Order


@pytest.fixture(scope="module")
def conversion(tmp_path_factory: pytest.TempPathFactory) -> Work:
    folder = tmp_path_factory.mktemp("conversion")
    hf_models.make("llama", folder / "hf", num_hidden_layers=1, vocab_size=259)
    checkpoints.byte_tokenizer().save_pretrained(folder / "hf")
    return Work(folder, ("jaxspec-convert", "llama", "FOLDER/hf", "FOLDER/ckpt"), "ckpt")


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory, conversion: Work, breaker: Breaker) -> Work:
    folder = tmp_path_factory.mktemp("head")
    place = conversion.fresh(folder / "made")
    hf_models.make("llama", place / "hf96", num_hidden_layers=1)
    target = ("jaxspec-convert", "llama", f"{place}/hf96", f"{folder}/ckpt")
    assert breaker.follow(Order([*target], str(folder))).code == 0
    published_heads.write(folder / "source", published_heads.eagle(place / "hf96"), published_heads.EAGLE)
    shutil.rmtree(place)
    out = "ckpt/heads/eagle"
    command = ("jaxspec-convert", "head", "FOLDER/source", f"FOLDER/{out}", "--target", "FOLDER/ckpt")
    return Work(folder, command, out)


def test_a_conversion_is_killed_at_its_last_writes(conversion: Work, breaker: Breaker, tmp_path: Path):
    count = writes_of(conversion, breaker, tmp_path)
    survives_every_kill(conversion, breaker, tmp_path, [count // 2, count - 1, count])


@pytest.mark.soak
def test_a_conversion_is_killed_at_every_write(conversion: Work, breaker: Breaker, tmp_path: Path):
    survives_every_kill(conversion, breaker, tmp_path)


@pytest.mark.parametrize("how", [pytest.param("full", marks=pytest.mark.soak), "read-only"])
def test_a_conversion_meets_a_disk_that_takes_nothing(how: How, conversion: Work, breaker: Breaker, tmp_path: Path):
    steps = range(1, writes_of(conversion, breaker, tmp_path)) if how == "full" else [1]
    refuses(conversion, breaker, tmp_path, how, steps)


@pytest.mark.soak
def test_a_heads_conversion(head: Work, breaker: Breaker, tmp_path: Path):
    survives_every_kill(head, breaker, tmp_path)
    refuses(head, breaker, tmp_path, "full", range(1, writes_of(head, breaker, tmp_path)))
    refuses(head, breaker, tmp_path, "read-only", [1])
