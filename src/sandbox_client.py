"""The SDK under the name that k8e users already import."""

from k8e.client import *  # noqa: F403 - the names are exactly the SDK's own
from k8e.client import __all__ as __all__
