"""The SDK where users of k8e's former one have it: with this directory on the path, installed or not."""

import importlib.util
import sys
from pathlib import Path

if importlib.util.find_spec("k8e") is None:
    sys.path.append(str(Path(__file__).resolve().parents[2] / "src"))

from k8e.client import *  # noqa: F403 - the names are exactly the SDK's own
from k8e.client import __all__ as __all__
