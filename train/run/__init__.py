"""The trainer with bit-exact resume, and its helpers."""
