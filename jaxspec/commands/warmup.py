"""`jaxspec warmup`: compiles programs ahead, for the cache of compiled programs."""

import time

from jaxspec.checkpoint.loading import load
from jaxspec.engine.engine import Engine
from jaxspec.engine.requests import requests_of
from jaxspec.host import compilation
from jaxspec.host.arguments import integer
from jaxspec.host.compilation import Compilations
from jaxspec.options.by_command import Warmup


def run(settings: Warmup) -> None:
    """Compiles the programs of the given methods and lengths, and prints how many there are."""
    integer("batch_size", settings.batch_size, 1)
    for tokens in settings.prompt_tokens:
        integer("prompt_tokens", tokens, 1)
    place = compilation.keep_compilations()
    if place is None:
        raise ValueError("compiled programs are not kept: the cache folder cannot be written, or JAX's cache is off")
    model = load(settings.target, settings.dtype, settings.devices.open(several=True), settings.quantize)
    began, done = time.perf_counter(), set[tuple]()
    for method in settings.methods or (None,):
        engine = Engine.calibrated(model, method, batch_size=settings.batch_size)
        for tokens in settings.prompt_tokens:
            prompts = [[0] * tokens] * settings.batch_size
            found = engine.compilations(requests_of(model, prompts, sampling=settings.sampling))
            jobs = {key: job for key, job in found.items() if key not in done}
            Compilations(jobs, lambda key, name=str(engine.method): f"{key[0]} of {name}", repr).wait()
            done |= jobs.keys()
            compilation.make_room_for_more()
    print(f"{len(done)} programs in {time.perf_counter() - began:.0f} s, kept in {place}")
