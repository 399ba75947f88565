"""Controllers, one file a stopping rule."""
