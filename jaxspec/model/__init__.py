"""The LLaMA model: shape, computation, and sharding over a mesh."""
