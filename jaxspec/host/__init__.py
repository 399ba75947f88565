"""Host-side helpers: atomic files, progress, signals, several processes."""
