"""Everything here goes through the real `k8e` command or the documents' own examples, against the real server."""

from __future__ import annotations

from tests.support.commands import environ, k8e, tidy
from tests.support.users_checkout import users_checkout, users_environ

__all__ = ["environ", "k8e", "tidy", "users_checkout", "users_environ"]
