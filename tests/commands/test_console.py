"""Command lines that are wrong end in one short sentence."""

import pytest

from jaxspec.commands import main


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (
            "generate --target builtin --promt a",
            "error: Unrecognized options: --promt, a; perhaps you meant --prompt; see jaxspec --help",
        ),
        (
            "bench --targt builtin",
            "error: Missing from jaxspec bench: --target, --prompts, --methods; unrecognized options: --targt builtin; "
            "see jaxspec bench --help",
        ),
        ("generate --target builtin --zzzz", "error: Unrecognized options: --zzzz; see jaxspec --help"),
    ],
)
def test_wrong_options(
    arguments: str, says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["jaxspec", *arguments.split()])
    with pytest.raises(SystemExit) as exited:
        main.main()
    assert exited.value.code == 2
    assert capsys.readouterr().err.splitlines() == [says]
