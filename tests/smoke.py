"""A short test of an installation, such as one on another Python or with other versions of the dependencies.

`python -m tests.smoke` runs it. It needs jaxspec only, no test tools, and takes about three minutes on two cores.
`python -m tests.smoke --lowest` prints the lowest versions that pyproject.toml allows, as constraints for pip.
"""

import json
import re
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path

PROMPT = "def write(self, data):"
COMMANDS = (
    "jaxspec.commands.main env",
    "jaxspec.commands.convert export builtin hf --format hf",
    "jaxspec.commands.convert llama hf model --dtype float32",
    "jaxspec.commands.convert inspect model --verify",
    "jaxspec.commands.train medusa --target model --data stdlib --steps 2 --batch-size 2 --context 64",
    "jaxspec.commands.main methods --target model",
    "jaxspec.commands.main bench --target model --methods plain medusa+chain ngram+chain --prompts builtin --limit 2 "
    "--max-new-tokens 16 --repeats 1 --no-prices --json out.json --report report.html",
    "jaxspec.commands.main verify --target builtin --only early-exit+chain/greedy/0",
)
METHODS = ("plain", "eagle+eagle2,total=16,depth=3,width=4", "edd+chain,length=4+beta-ts")


def main() -> None:
    """Runs all commands in an empty folder, then the Python API. Raises if one fails."""
    if sys.argv[1:] == ["--lowest"]:
        print(*lowest(), sep="\n")
        return
    with tempfile.TemporaryDirectory() as folder:
        for command in COMMANDS:
            began = time.perf_counter()
            subprocess.run([sys.executable, "-m", *command.split()], cwd=folder, check=True, stdout=subprocess.DEVNULL)
            print(f"{time.perf_counter() - began:4.0f} s  {command}", flush=True)
        results = json.loads(Path(folder, "out.json").read_text())
        assert not any(row["unexplained_divergences"] for row in results["methods"].values()), results
    texts_are_plain()
    print(f"Python {sys.version.split()[0]}: passed")


def texts_are_plain() -> None:
    """Greedy text, and the sampled text of a tree, equal plain decoding's."""
    import jaxspec

    model = jaxspec.load("builtin")
    for temperature, methods in ((0.0, METHODS), (0.8, METHODS[:2])):
        texts = [
            jaxspec.Engine(model, method).generate([PROMPT, "import "], max_new_tokens=24, temperature=temperature)
            for method in methods
        ]
        for method, found in zip(methods, texts, strict=True):
            for one, other in zip(texts[0], found, strict=True):
                assert list(one.tokens) == list(other.tokens), f"{method} at temperature {temperature}"
        print(f"temperature {temperature}: {len(methods)} methods, the same text", flush=True)


def lowest() -> list[str]:
    """A line NAME==VERSION for each dependency of `jax-specdec`, and of the extras that users install on a CPU."""
    project = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())["project"]
    extras = (project["optional-dependencies"][name] for name in ("quant", "report", "search"))
    wanted = [*project["dependencies"], *(each for extra in extras for each in extra)]
    return sorted({re.sub(">=", "==", each) for each in wanted})


if __name__ == "__main__":
    main()
