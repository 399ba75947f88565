"""Costs of the parts of a round on a device: measured, stored and read."""
