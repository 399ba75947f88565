"""A LLaMA: its shape, its computation, and how it lies on a mesh of devices."""
