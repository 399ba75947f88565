"""The options of `jaxspec-train`. These modules do not import JAX, so `--help` is fast."""
