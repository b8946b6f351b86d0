"""Ours beside the alternatives, in one run on one machine: `make bench`."""
