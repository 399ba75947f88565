"""What the pieces of a round cost on a device: measured, kept, and read again."""
