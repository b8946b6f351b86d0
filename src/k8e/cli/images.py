"""`pull`, and what `create` does first: get an image ready, and show how far that is."""

from __future__ import annotations

import argparse
import sys

from k8e.cli.output import print_json, say
from k8e.client.errors import Unsupported
from k8e.client.light.calls import Answer, Calls
from k8e.visible import terminal_safe

__all__ = ["pull", "pull_image"]

MB = 1_000_000
WORDS = {
    "waiting": "waiting for other images",
    "resolving": "asking its registry",
    "unpacking": "unpacking",
    "preparing": "preparing it for sandboxes",
}


def pull_image(args: argparse.Namespace, calls: Calls) -> int:
    print_json({"image": pull(calls, args.image, args.runtime)})
    return 0


def pull(calls: Calls, image: str, runtime: str) -> str:
    """The image's exact name, when it is ready; an image that is here is ready at once and nothing is said."""
    line = ProgressLine(image)
    exact = image
    try:
        for progress in calls.stream("PullImage", [{"image": image, "runtime_class": runtime}]):
            exact = progress.text("image") or exact
            line.tell(progress)
    except Unsupported:
        # A server from before: it prepares the image when the session is made.
        return image
    finally:
        line.end()
    return exact


class ProgressLine:
    """One line that changes at a terminal; elsewhere a line for each step."""

    def __init__(self, image: str) -> None:
        self._image = image
        self._is_terminal = sys.stderr.isatty()
        self._last = ""
        self._width = 0

    def tell(self, progress: Answer) -> None:
        text = step(progress, with_done=self._is_terminal)
        if not text or text == self._last:
            return
        self._last = text
        if not self._is_terminal:
            say(f"{self._image}: {text}")
            return
        line = terminal_safe(f"k8e: {self._image}: {text}")
        sys.stderr.write(f"\r{line:<{self._width}}")
        sys.stderr.flush()
        self._width = len(line)

    def end(self) -> None:
        if self._width:
            sys.stderr.write("\n")


def step(progress: Answer, *, with_done: bool) -> str:
    phase = progress.text("phase")
    if phase != "downloading":
        return WORDS.get(phase, "")
    done, total = (f"{progress.number(name) / MB:.1f}" for name in ("done_bytes", "total_bytes"))
    return f"downloading {done} of {total} MB" if with_done else f"downloading {total} MB"
