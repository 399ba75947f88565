"""`jaxspec warmup` compiles what is decoded later, and each program once."""

import os
from pathlib import Path

import pytest

from jaxspec import Engine
from jaxspec.commands import warmup
from jaxspec.evaluate.runner import compilations
from jaxspec.host.buckets import to_path
from tests import checkpoints
from tests.bucket import Bucket
from tests.programs import run


def test_what_it_compiles_is_what_decoding_needs(tmp_path: Path):
    path = checkpoints.make(tmp_path / "ckpt", layers=1)
    options = ("--methods", "plain", "ngram+chain,length=2", "--prompt-tokens", 6, 7, "--max-new-tokens", 9)
    code, out, _ = run("jaxspec", "warmup", "--target", path, *options)
    assert code == 0 and out.startswith("6 programs in")
    with compilations() as compiled:
        Engine(path, "ngram+chain,length=2").generate([[1, 2, 3]], max_new_tokens=9)
    assert not compiled


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--prompt-tokens",), "name at least one length after --prompt-tokens"),
        (("--prompt-tokens", "9", "0"), "prompt_tokens must be at least 1, not 0"),
        (("--prompt-tokens", "9", "250"), "--prompt-tokens 250 and --max-new-tokens 128 exceed the 256 positions"),
        (("--methods", "plain", "foo"), "there is no drafter 'foo'"),
    ],
)
def test_nothing_is_compiled_where_a_part_is_refused(
    options: tuple[str, ...], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    path = checkpoints.make(tmp_path / "ckpt", layers=1)
    monkeypatch.setattr(warmup, "Compilations", None)
    found = run("jaxspec", "warmup", "--target", path, *options)
    assert found.code == 2 and said in found.last


def test_programs_that_cannot_be_kept(tmp_path: Path, in_bucket: Bucket, monkeypatch: pytest.MonkeyPatch):
    target = checkpoints.make(tmp_path / "ckpt", layers=1)
    monkeypatch.setattr(warmup, "Compilations", None)
    monkeypatch.setattr(os, "access", lambda *_: False)
    for place, code, said in (
        (to_path("gs://no-such-bucket/c"), 2, "gs://no-such-bucket/c/.writable: there is no such object, or no such"),
        (tmp_path, 1, f"{tmp_path}: no file can be written there; name another by JAXSPEC_CACHE"),
    ):
        monkeypatch.setattr(warmup.compilation, "keep_compilations", lambda place=place: place)
        found = run("jaxspec", "warmup", "--target", target)
        assert found.code == code and f"error: {said}" in found.last
