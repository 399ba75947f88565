"""What happens on the host whatever the model: files that appear whole, progress, signals, several processes."""
