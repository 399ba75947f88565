"""One file for each thing that is trained or searched."""
