"""Places where sandboxes live."""
