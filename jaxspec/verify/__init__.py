"""A check on the user's own model and device that no method changes the target's text."""
