"""`jaxspec bench`: runs the benchmark, reads the shape for a simulation, and writes the report."""

import dataclasses
from pathlib import Path

from jaxspec.checkpoint.builtin import locate
from jaxspec.checkpoint.config_json import CheckpointConfig, CheckpointError
from jaxspec.convert.folders import read_json
from jaxspec.convert.hf_config import to_llama
from jaxspec.evaluate import bench
from jaxspec.evaluate.runlog import log_of
from jaxspec.host.atomic import check_apart, check_folder
from jaxspec.host.processes import is_first
from jaxspec.options.by_command import Bench, Report
from jaxspec.report import page


def run(settings: Bench) -> None:
    """Runs the benchmark, and writes the report if --report is given."""
    if settings.report is not None:
        if settings.json is None:
            raise ValueError("--report needs --json OUT.json, because the report is made from the log beside it")
        check_folder(settings.report)
        check_apart(settings.report, settings.prompts, settings.target, settings.json, log_of(settings.json))
    if settings.json is None and settings.simulate is None:
        settings = dataclasses.replace(settings, prices=False)
    shape = None if settings.simulate is None else read_shape(locate(settings.target))
    written = bench.run(settings, shape)
    if settings.report is not None and is_first():
        page.run(Report(runs=tuple(written), out=settings.report))


def read_shape(target: Path) -> CheckpointConfig:
    """The config in a checkpoint's folder or a Hugging Face one, or in a config.json of either, without any weights.

    Raises CheckpointError if it is none.
    """
    file = target / "config.json" if target.is_dir() else target
    values = read_json(file)
    if "model_type" in values:
        return CheckpointConfig(values["model_type"], to_llama(values), "bfloat16", "bfloat16", "huggingface")
    try:
        return CheckpointConfig.from_json(file.read_text(encoding="utf-8"))
    except (ValueError, TypeError) as error:
        raise CheckpointError(f"{file} is not the config of a model: {error}") from error
