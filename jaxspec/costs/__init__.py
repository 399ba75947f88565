"""Costs of the pieces of a round on a device: measuring, storing and reading them."""
