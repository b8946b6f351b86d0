"""Doors: one translator per protocol in front of the engine, with no logic of their own."""
