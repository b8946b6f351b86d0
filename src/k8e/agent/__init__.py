"""What runs inside a sandbox: PID 1, which executes commands and serves files for the engine.

Standard library only, Python 3.8 or later, and few imports: every sandbox pays for them when it starts.
"""
