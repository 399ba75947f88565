"""Absent GPUs: XLA's description of them, and a plan where XLA's compiler for GPUs is installed."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from jaxspec.planning import devices


@pytest.mark.parametrize("kind", ["a100-80g", "h100-80g", "h200-141g"])
def test_a_description_sets_each_field_once(kind: str):
    message = re.search(r"gpu_device_info \{(.*)\} platform_name", devices.described(kind))
    assert message is not None
    fields = re.findall(r"(\w+)[: ]+(?=[\d{])", re.sub(r"\{[^}]*\}", "{", message[1]))
    assert "cuda_compute_capability" in fields and "shared_memory_per_block" in fields
    assert len(fields) == len(set(fields))  # XLA refuses a field that is given twice


@pytest.mark.skipif(not devices.can_compile(), reason="needs the extra plan-cuda")
def test_a_loop_is_compiled_for_a_gpu_that_is_not_here(tmp_path: Path):
    out = tmp_path / "plan.json"
    command = "jaxspec.commands.main plan --model builtin --method dflash --context 256 --device h100-80g:1 --json"
    # In a process of its own, because the compiler's flags are set before JAX starts.
    subprocess.run([sys.executable, "-m", *command.split(), out], check=True, timeout=300)
    assert json.loads(out.read_text())["compiled"]
