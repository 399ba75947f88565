"""A proof on the user's own model and device that no method changes what the target says."""
