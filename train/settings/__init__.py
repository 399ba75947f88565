"""The options of `jaxspec-train`. Kept apart from the work, so that `--help` need not load JAX."""
