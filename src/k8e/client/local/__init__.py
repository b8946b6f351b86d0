"""Calls to this machine's own server, through its unix socket."""

from k8e.client.local.channel import LocalChannel

__all__ = ["LocalChannel"]
