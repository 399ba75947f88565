"""`jaxspec warmup`: compiles programs ahead, for the cache of compiled programs."""

import time

from jaxspec.checkpoint.loading import load
from jaxspec.engine.engine import Engine
from jaxspec.engine.requests import requests_of
from jaxspec.host import compilation
from jaxspec.host.arguments import integer
from jaxspec.host.compilation import Compilations
from jaxspec.methods.method import parse_method
from jaxspec.options.by_command import Warmup


def run(settings: Warmup) -> None:
    """Compiles the programs of the given methods and lengths, and prints how many there are."""
    integer("batch_size", settings.batch_size, 1)
    if not settings.prompt_tokens:
        raise ValueError("name at least one length after --prompt-tokens")
    for tokens in settings.prompt_tokens:
        integer("prompt_tokens", tokens, 1)
    for method in settings.methods:  # before minutes of compiling another one
        parse_method(method)
    place = compilation.keep_compilations()
    if place is None:
        raise ValueError("compiled programs are not kept: the cache folder cannot be written, or JAX's cache is off")
    compilation.check_writable(place)
    model = load(settings.target, settings.dtype, settings.devices.open(several=True), settings.quantize)
    longest, new = max(settings.prompt_tokens), settings.sampling.max_new_tokens
    if longest + new > (room := model.config.model.usable_length):
        raise ValueError(
            f"--prompt-tokens {longest} and --max-new-tokens {new} exceed the {room} positions of this model: lower one"
        )
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
