"""Settings of all tests: the CPU, checked shapes, one compilation cache for the checkout."""

import gc
import importlib
import importlib.metadata
import importlib.util
import itertools
import os
from pathlib import Path

CACHE = Path(__file__).parent.parent / ".cache"
TESTS = itertools.count(1)  # that this process has run

# Before JAX, PyTorch or transformers are imported; subprocesses that a test starts inherit it.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(CACHE / "compiled"))
os.environ.setdefault("JAXSPEC_CACHE", str(CACHE / "jaxspec"))
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"  # what pays here is thousands of small programs
# Most of a test's time is compilation, and machine code that is not optimised compiles sooner.
QUICK_TO_COMPILE = "--xla_backend_optimization_level=0 --xla_cpu_parallel_codegen_split_count=1"
if importlib.metadata.version("jaxlib").startswith("0.10."):  # later versions exit at a flag that is unknown to them
    QUICK_TO_COMPILE += " --xla_cpu_use_fusion_emitters=false"
if QUICK_TO_COMPILE not in (flags := os.environ.get("XLA_FLAGS", "")):  # workers inherit what their parent set
    os.environ["XLA_FLAGS"] = f"{QUICK_TO_COMPILE} {flags}"
# Tracing makes millions of objects, which mostly live on; the search for cycles took a tenth of a test's time.
gc.set_threshold(200_000, 50, 1000)
os.environ["OMP_NUM_THREADS"] = "1"  # PyTorch: the workers share the cores already
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["HF_HUB_OFFLINE"] = "1"

import hypothesis
import jaxtyping
import pytest

from tests.quick_runs import shorten
from tests.soak import pytest_addoption, pytest_collection_modifyitems, pytest_configure  # noqa: F401 (hooks)

# Every function and dataclass of the library checks its annotated shapes from here on.
jaxtyping.install_import_hook("jaxspec", "beartype.beartype")

phases = [phase for phase in hypothesis.Phase if phase is not hypothesis.Phase.explain]  # which takes minutes
hypothesis.settings.register_profile("local", max_examples=20, deadline=None, phases=phases)
hypothesis.settings.register_profile("ci", hypothesis.settings.get_profile("local"), derandomize=True, database=None)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "local")


@pytest.fixture(autouse=True, scope="session")
def two_tree_sizes():
    """Verification is compiled for two tree sizes instead of up to eight: compilation takes most of a test's time.

    The sizes are a fact about the backend, which users do not set. `test_every_size_of_verification_that_a_cpu_has`
    compiles all of them.
    """
    from jaxspec.model import backend  # after the import hook

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backend, "CPU_TREE_SIZES", (4,))
        yield


@pytest.fixture(autouse=True)
def forgotten_programs():
    """A process that compiles for many tests does not run out of memory maps, which would abort it.

    A small model's loop takes some 350 of the 65,530 maps, the largest 2,500. Counting them takes tens of milliseconds,
    hence only after every tenth.
    """
    yield
    if next(TESTS) % 10 == 0:
        from jaxspec.host import compilation  # after the import hook

        compilation.make_room(0.4)  # with more of them, tests of many small programs took twice as long


@pytest.fixture(scope="module")
def quick_runs():
    """For tests of whole runs: one tree size per method, and short timings."""
    with pytest.MonkeyPatch.context() as patch:
        shorten(patch)
        yield


@pytest.fixture(scope="session")
def bucket():
    """A bucket of Google's protocol on this machine; see `tests.bucket`."""
    for package in ("gcsfs", "gcp_storage_emulator"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    from tests.bucket import running

    with running() as found, pytest.MonkeyPatch.context() as patch:
        for name, value in found.environment.items():  # read by gcsfs and TensorStore when they are imported
            patch.setenv(name, value)
        patch.setitem(
            importlib.import_module("fsspec.config").conf, "gcs", {"token": "anon"}
        )  # if it is loaded already
        yield found


@pytest.fixture
def in_bucket(bucket):
    """That bucket, empty and without faults."""
    bucket.clear()
    yield bucket
    bucket.clear()
