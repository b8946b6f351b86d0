"""`python -m k8e`: the same as the command `k8e`."""

from __future__ import annotations

from k8e.cli.main import main

__all__: list[str] = []

if __name__ == "__main__":
    raise SystemExit(main(prog="k8e"))
