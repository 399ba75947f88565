"""The commands `jaxspec`, `jaxspec-convert` and `jaxspec-train`."""
