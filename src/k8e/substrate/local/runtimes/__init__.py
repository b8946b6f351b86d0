"""How a sandbox is isolated: one driver per runtime."""
