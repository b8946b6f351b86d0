"""Watching the server from outside: numbers for Prometheus, and traces where an operator wants them."""
