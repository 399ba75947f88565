"""Run by `test_continuous_batching.py` on eight CPU devices: rows refilled on meshes, against one device.

What is compiled ahead is not compiled again.
"""

import json
import tempfile
from pathlib import Path

from jaxspec import Engine, load, make_mesh
from jaxspec.evaluate.runner import compilations
from tests import checkpoints

PROMPTS = ["abcabc", "the first of the two", "x", "yes " * 20, "abcabcabcabc", "a b c d", "zz", "again and again"]
BUDGETS = [30, 3, 17, 24, 1, 40, 9, 25]
METHOD = "draft-model+chain,length=2"


def main() -> None:
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        path = checkpoints.make(Path(folder), layers=1)
        settings = {"max_new_tokens": BUDGETS, "temperature": [0.0, 0.8] * 4, "seed": 2}
        alone = Engine(load(path), METHOD).generate(PROMPTS, **settings, batch_size=1)
        for data, model, rows, together in ((2, 2, 2, 4), (4, 1, 1, 2)):  # here two parts of the batch have no text
            engine = Engine(load(path, mesh=make_mesh(data=data, model=model, rows=rows)), METHOD)
            engine.compile(engine.requests(PROMPTS, **settings), together)
            with compilations() as compiled:
                texts = engine.generate(PROMPTS, **settings, batch_size=together)
            same = [each.tokens for each in texts] == [each.tokens for each in alone]
            found[f"{data}x{model}x{rows}"] = same and not compiled
    print(json.dumps(found))


if __name__ == "__main__":
    main()
