"""The Python API: prompts in, text and statistics out."""
