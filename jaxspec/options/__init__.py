"""The options of the commands, each declared once. Importing them loads neither JAX nor a command-line library."""
