"""Text, as windows of tokens to train on."""
