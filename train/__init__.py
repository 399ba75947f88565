"""Training: data, losses, and one file per method. Installed as `jaxspec.train`."""
