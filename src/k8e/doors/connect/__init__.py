"""The JSON door: the same service over the Connect protocol, on a unix socket."""

from k8e.doors.connect.bounds import Bounds
from k8e.doors.connect.serving import serve

__all__ = ["Bounds", "serve"]
