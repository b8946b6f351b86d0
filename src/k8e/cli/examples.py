"""The texts of `--help`: what a group is for, and examples that can be pasted."""

from __future__ import annotations

__all__ = ["BY_COMMAND", "SANDBOX", "SANDBOX_IN_SHORT", "SERVER", "TOP"]

TOP = """k8e runs code that nobody trusts, isolated by gVisor, for AI agents and the people who build them.

  k8e sandbox run --lang python "print('hello')"     the first use sets everything up
  k8e sandbox --help                                 sessions, files, background runs
  k8e server status                                  the server behind it
  k8e doctor                                         what this machine can do
"""

SANDBOX_IN_SHORT = "run programs in sandboxes: sessions, files, background runs"

SANDBOX = """Each command prints one JSON line; `error` in it means that we failed, not the program. Without --session-id,
commands share one session that is made at first use.

  k8e sandbox run "echo hello"                       in the shared session
  SID=$(k8e sandbox create | jq -r .session_id)      a session of your own
  k8e sandbox write $SID main.py < main.py
  k8e sandbox run --session-id $SID "python3 main.py"
  k8e sandbox destroy $SID

Exit codes: `run` ends as the program did (128+n after signal n, 124 after a time-out);
1 bad input or not found; 2 unreachable, not allowed or a server error; 130 interrupted.
"""

SERVER = """examples:
  k8e server                          # in the foreground; sessions survive its end
  k8e server --listen 127.0.0.1:50052 --data-dir /srv/k8e
  k8e server status | jq .doors
  k8e server stop --destroy           # end every session, too
"""

BY_COMMAND = {
    "sandbox": SANDBOX,
    "run": """examples:
  k8e sandbox run --lang python "print('hello')"
  k8e sandbox run "pip install ./my.whl"          # the next run sees it: same session
  k8e sandbox run --lang python < program.py
  k8e sandbox run --raw "make test"               # output as it happens, exit code of the command
  k8e sandbox run --background "sleep 60; date"   # then: k8e sandbox poll <run_id>
""",
    "poll": """example:
  RUN=$(k8e sandbox run --background "sleep 60; date" | jq -r .run_id)
  k8e sandbox poll $RUN | jq -r .status           # running, completed, failed or timed_out
""",
    "kill-run": """examples:
  k8e sandbox kill-run $RUN                       # everything it started, at once
  k8e sandbox kill-run $RUN --signal 15           # asks its process group to end
""",
    "create": """examples:
  SID=$(k8e sandbox create | jq -r .session_id)
  k8e sandbox create --runtime container --memory-mib 2048 --cpus 2 --env TOKEN=x
  k8e sandbox create --allowed-hosts example.com,db.example.com:5432
  k8e sandbox create --network none               # nothing is reached
  k8e sandbox create --tenant my-project          # its /workspace survives the session
""",
    "get": """example:
  k8e sandbox get $SID | jq .phase
""",
    "sessions": """examples:
  k8e sandbox sessions | jq -r '.sessions[].session_id'
  k8e sandbox sessions --phase all
""",
    "destroy": """example:
  k8e sandbox destroy $SID
""",
    "subagent": """example:
  CHILD=$(k8e sandbox subagent $SID | jq -r .session_id)
  k8e sandbox run --session-id $CHILD "ls /workspace"     # the parent's files
""",
    "status": """example:
  k8e sandbox status || echo "no server"          # exit code 2 when none answers
""",
    "workspaces": """examples:
  k8e sandbox workspaces list
  k8e sandbox workspaces delete my-project
""",
    "allow-hosts": """examples:
  k8e sandbox allow-hosts                                 # what the shared session may reach
  k8e sandbox allow-hosts --session-id $SID --add api.example.com,db.example.com:5432
  k8e sandbox allow-hosts --session-id $SID --remove api.example.com      # open connections are cut
  k8e sandbox allow-hosts --session-id $SID 'example.com,*.example.com,!bad.example.com,10.1.0.0/16:22'
  k8e sandbox allow-hosts --session-id $SID --clear       # nothing at all
""",
    "egress": """examples:
  k8e sandbox egress $SID | jq -r 'select(.verdict == "denied") | .name'
  k8e sandbox egress $SID --follow
""",
    "write": """examples:
  k8e sandbox write $SID /workspace/main.py < main.py
  echo more | k8e sandbox write $SID log.txt --mode a
""",
    "read": """examples:
  k8e sandbox read $SID result.json | jq -r .content
  k8e sandbox read --raw $SID picture.png > picture.png
""",
    "list": """examples:
  k8e sandbox list $SID
  k8e sandbox list $SID --since $(date -d '-1 hour' +%s)
""",
    "secret": """examples:
  k8e secret set github:token < token.txt         # or typed at a hidden prompt; never an argument
  k8e secret list
  k8e sandbox create --secret GH_TOKEN=github:token
  k8e sandbox create --broker GH_TOKEN=github:token@api.github.com
  k8e secret delete github:token
""",
    "server": SERVER,
    "doctor": """examples:
  k8e doctor
  k8e doctor --json | jq '.checks[] | select(.ok | not)'
  sudo k8e doctor --fix
""",
    "setup": """example:
  sudo k8e setup                                  # before the first use, for instance in an image
""",
}
"""Below each command's flags."""
