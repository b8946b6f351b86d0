"""Who decides an approval: an identity, or the person in front of it.

A local user may decide what a program of the same user asked for, because that is how a person and their agent share
a machine: the command line asks at the terminal, an agent's window shows the question. Both are told by a process of that
user, so against a program that lies they are a speed bump and no more: any process of the same uid can find a terminal,
or call itself a window. Whoever needs more gives the agent a key or a uid of its own, or switches this off.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from k8e.doors.service.call import Call
from k8e.errors import Denied, InvalidSpec
from k8e.identity.callers import Caller
from k8e.identity.terminals import has_terminal

__all__ = ["IN_PERSON", "Presence"]

TERMINAL: Final = "terminal"
ELICITATION: Final = "elicitation"
WORDS: Final[Mapping[str, str]] = {TERMINAL: "at a terminal", ELICITATION: "in an agent's window"}
OTHERS: Final = "let another identity decide, for example a key of the role approver"


@dataclass(frozen=True, slots=True, kw_only=True)
class Presence:
    """What a server believes of people."""

    allowed: bool = True
    """Whether a person may decide as the same user that asked."""
    has_terminal: Callable[[int], bool] = has_terminal

    def decider(self, call: Call, presence: str) -> str:
        """As whom the caller decides. Raises: InvalidSpec, Denied."""
        if not presence:
            return call.caller.identity
        if presence not in WORDS:
            raise InvalidSpec(f"{presence!r} is not one of {', '.join(WORDS)}", field="presence")
        self._check(call, presence)
        return f"{call.caller.identity} {WORDS[presence]}"

    def _check(self, call: Call, presence: str) -> None:
        caller = call.caller
        if not self.allowed:
            raise Denied(
                f"on this server nobody decides in person what the same user asked (--approve-in-person): {OTHERS}"
            )
        if not caller.is_local_user:
            raise Denied(f"a {caller.via} is no person at this machine: decide without presence")
        if call.owner != caller.owner:
            raise Denied(f"nobody is present for another owner: decide for {call.owner} without presence")
        if presence == TERMINAL:
            self._check_terminal(caller)

    def _check_terminal(self, caller: Caller) -> None:
        if not caller.pid:
            raise Denied(
                "over this connection nobody can see a terminal: run `k8e sandbox approve` on the server's machine "
                f"without --endpoint, or {OTHERS}"
            )
        # SAFETY: the process may end and its number be given again; it connected as this user a moment ago, and all that
        # the answer is worth is said above.
        if not self.has_terminal(caller.pid):
            raise Denied(f"process {caller.pid} has no terminal: run `k8e sandbox approve` in one, or {OTHERS}")


IN_PERSON: Final = Presence()
