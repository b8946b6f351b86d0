"""One file per kernel mechanism; each function does one thing and decides nothing."""
