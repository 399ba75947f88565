"""Training: data, losses and one file a method. Installed as `jaxspec.train`."""
