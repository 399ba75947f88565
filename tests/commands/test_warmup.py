"""`jaxspec warmup` compiles what is decoded later, and each program once."""

import pytest

from jaxspec import Engine
from jaxspec.commands import main
from jaxspec.evaluate.runner import compilations
from tests import checkpoints


def test_what_it_compiles_is_what_decoding_needs(
    tmp_path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
):
    path = checkpoints.make(tmp_path / "ckpt", layers=1)
    monkeypatch.setattr(
        "sys.argv", ["jaxspec", "warmup", "--target", str(path), "--methods", "plain", "ngram+chain,length=2"]
        + ["--prompt-tokens", "6", "7", "--max-new-tokens", "9"],
    )  # fmt: skip
    with pytest.raises(SystemExit) as exit_:
        main.main()
    assert exit_.value.code == 0 and capsys.readouterr().out.startswith("6 programs in")
    with compilations() as compiled:
        Engine(path, "ngram+chain,length=2").generate([[1, 2, 3]], max_new_tokens=9)
    assert not compiled
