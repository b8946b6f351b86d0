"""Framed, multiplexed, acknowledged byte streams between the engine and the agent inside a sandbox.

`frames` is the codec, `mux` the streams, both free of I/O and clean on Python 3.8 because they ship inside the
agent; `aio` drives them on the engine's side.
"""
