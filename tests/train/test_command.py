"""The command itself: its help."""

import subprocess
import sys

import pytest

COMMANDS = (
    *(
        "lm",
        "eagle",
        "eagle3",
        "dflash",
        "draft-model",
        "early-exit",
        "edd",
        "medusa",
        "layer-skip",
        "skip-search",
        "calibrator",
    ),
    "generate",
)


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help_is_quick_and_teaches(command: str):
    heavy = ("jax", "flax", "optax", "orbax", "transformers", "tokenizers", "numpy", "scipy")
    code = (
        "import sys\nfrom jaxspec.commands import train\n"
        f"sys.argv = ['jaxspec-train', *'{command}'.split(), '--help']\n"
        f"try:\n    train.main()\nfinally:\n    print([m for m in {heavy} if m in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"
    if command:
        assert f"For example: jaxspec-train {command}" in done.stdout
    else:
        assert all(name in done.stdout for name in COMMANDS)
