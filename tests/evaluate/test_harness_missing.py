"""The command of lm-evaluation-harness where the harness is not installed."""

import importlib.util
import subprocess
import sys

import pytest


@pytest.mark.skipif(importlib.util.find_spec("lm_eval") is not None, reason="the harness is installed")
def test_one_sentence_says_what_to_install():
    done = subprocess.run([sys.executable, "-m", "jaxspec.evaluate.harness"], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].endswith("pip install lm_eval")
    assert "Traceback" not in done.stderr
