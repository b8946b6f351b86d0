"""What a sandbox sees as its root file system, prepared once and shared read-only."""
