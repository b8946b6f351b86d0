"""The texts of `--help`: what a group is for, and examples that can be pasted."""

from __future__ import annotations

__all__ = ["BY_COMMAND", "SANDBOX", "SANDBOX_IN_SHORT", "SERVER", "TOP"]

TOP = """k8e runs code that nobody trusts, isolated by gVisor, for AI agents and the people who build them.

  k8e sandbox run --lang python "print('hello')"     the first use sets everything up
  k8e sandbox-install-skill                          your agents know it from now on
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
  k8e server start --pool-min 8       # in the background
  k8e server start                    # again, with the settings it had
  k8e server status | jq .doors
  k8e server stop --destroy           # end every session, too
"""

BY_COMMAND = {
    "sandbox": SANDBOX,
    "run": """examples:
  k8e sandbox run --lang python "print('hello')"
  k8e sandbox run "pip install ./my.whl"          # the next run sees it: same session
  k8e sandbox run --timeout 300 "pip install pandas matplotlib"
  k8e sandbox run --lang python < program.py
  cat data.csv | k8e sandbox run --raw "sort | uniq -c"   # its input is yours; -n for none
  k8e sandbox run --raw "make test"               # output as it happens, exit code of the command
  k8e sandbox run --background "sleep 60; date"   # then: k8e sandbox poll <run_id>
  k8e sandbox run --background --input "sort -u"  # then: k8e sandbox input <run_id> --eof < words.txt
  k8e sandbox run --git-repo https://example.com/project.git "ls repo"
""",
    "runs": """examples:
  k8e sandbox runs --output table                 # of the shared session
  k8e sandbox runs $SID | jq -r '.runs[] | select(.status == "running") | .run_id'
  k8e sandbox poll $RUN | jq -r .stdout           # what one of them has printed so far
""",
    "poll": """example:
  RUN=$(k8e sandbox run --background "sleep 60; date" | jq -r .run_id)
  k8e sandbox poll $RUN | jq -r .status           # running, completed, failed or timed_out
""",
    "kill-run": """examples:
  k8e sandbox kill-run $RUN                       # everything it started, at once
  k8e sandbox kill-run $RUN --signal 15           # asks its process group to end
""",
    "execs": """examples:
  k8e sandbox execs --output table                # of the shared session: commands, runs and terminals
  k8e sandbox execs $SID | jq -r '.execs[] | select(.takes_input) | .exec_id'
""",
    "follow": """examples:
  k8e sandbox follow $EXEC                        # stdout to stdout, stderr to stderr; leaving ends nothing
  k8e sandbox follow $RUN                         # a run from its beginning, a terminal from what it still shows
  k8e sandbox follow $RUN --stdout-offset $(stat -c %s out.txt) >> out.txt   # on from where the last one stopped
""",
    "input": """examples:
  k8e sandbox input $EXEC yes                     # one line
  k8e sandbox input $EXEC --eof < answers.txt     # a file, and then end-of-file
""",
    "signal": """examples:
  k8e sandbox signal $EXEC                        # 15 asks it to end
  k8e sandbox signal $EXEC 9                      # ends everything that it started
""",
    "create": """examples:
  SID=$(k8e sandbox create | jq -r .session_id)
  k8e sandbox create --runtime container --memory-mib 2048 --cpus 2 --env TOKEN=x
  k8e sandbox create --allowed-hosts example.com,db.example.com:5432
  k8e sandbox create --network none               # nothing is reached
  k8e sandbox create --image python:3.12-slim     # from a registry that the server knows (docs/images.md)
  k8e sandbox create --label task=42              # then: k8e sandbox sessions --label task=42
  k8e sandbox create --tenant my-project          # its /workspace survives the session
  k8e sandbox create --manifest workspace.yaml    # files, directories and repositories to begin with
""",
    "pull": """examples:
  k8e sandbox pull python:3.12-slim               # now, so that the first session of it does not wait
  k8e sandbox pull registry.example.com/team/tools:1.4 | jq -r .image
""",
    "cp": """examples:
  k8e sandbox cp data.csv $SID:data.csv           # relative paths are below /workspace
  k8e sandbox cp ./project $SID:/workspace/project
  k8e sandbox cp $SID:/workspace/out ./out        # trees, both ways, with their modes
""",
    "shell": """examples:
  k8e sandbox shell                               # in the shared session
  k8e sandbox shell -- python3 -i
  k8e sandbox shell $SID                          # exit or Ctrl-D ends it, with the shell's own exit code
  k8e sandbox shell $SID -- python3 -i
""",
    "forward": """examples:
  k8e sandbox run --background "python3 -m http.server 8000"
  k8e sandbox forward 8000                        # http://127.0.0.1:8000 is the server inside, until Ctrl-C
  k8e sandbox forward $SID 8080:8000 5432:5432    # several at once, with other local ports
  k8e sandbox forward $SID 0:8000 | jq .local_port
""",
    "log": """examples:
  k8e sandbox log $SID
  k8e sandbox log $SID --tail 20                  # the last 20 lines
  k8e sandbox log $SID --follow                   # ends with the session
  k8e sandbox log $SID --tail 0 --follow          # only what comes
""",
    "events": """examples:
  k8e sandbox events $SID | jq -r '.events[].event'
  k8e sandbox events $SID --output table
""",
    "ps": """examples:
  k8e sandbox ps $SID | jq -r '.processes[].args'
  k8e sandbox ps $SID --output table
""",
    "top": """examples:
  k8e sandbox top                                 # q leaves
  k8e sandbox top --once --output json | jq .sessions
""",
    "confirm": """examples:
  k8e sandbox confirm $SID "delete the old database" && ./delete.sh
  k8e sandbox confirm $SID "deploy" --no-wait | jq -r .approval_id
""",
    "approve": """examples:
  k8e sandbox approve $ID                         # by anybody who may; the user that asked is asked back in person
  k8e sandbox approve $ID --reject --reason "not on a Friday"
""",
    "approvals": """examples:
  k8e sandbox approvals list --output table
  K8E_SANDBOX_APIKEY=$(cat phone.key) k8e sandbox approvals
""",
    "whoami": """example:
  k8e sandbox whoami | jq -r .owner
""",
    "connect": """examples:
  k8e sandbox connect --endpoint box.example:50051
  k8e sandbox connect --endpoint box.example:50051 --reset-certs
""",
    "login": """examples:
  K8E_SANDBOX_APIKEY=$(cat key) k8e sandbox login --endpoint box.example:50051 --ca-fingerprint 3f5a…
  k8e sandbox login --endpoint box.example:50051 --trust-first-use
""",
    "profile": """examples:
  k8e sandbox profile add work box.example:50051
  k8e sandbox profile use work
  k8e sandbox profile list
""",
    "benchmark": """example:
  k8e sandbox benchmark --iterations 10 | jq .warm_create
""",
    "catalog": """example:
  k8e sandbox catalog | jq -r '.commands[].name'
""",
    "completion": """examples:
  source <(k8e completion bash)
  k8e completion zsh > ~/.zsh/completion/_k8e
  k8e completion fish > ~/.config/fish/completions/k8e.fish
  k8e sandbox completion bash                     # the same
""",
    "get": """example:
  k8e sandbox get $SID | jq .phase
""",
    "sessions": """examples:
  k8e sandbox sessions | jq -r '.sessions[].session_id'
  k8e sandbox sessions --phase all
  k8e sandbox sessions --label task=42 --label reviewed       # both: this value, and any value
  k8e sandbox sessions --output table --show-labels
""",
    "label": """examples:
  k8e sandbox label $SID task=42 note="two words"
  k8e sandbox label $SID task=43 note-            # a new value; K- removes
  k8e sandbox label $SID | jq .labels             # show them
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
  k8e sandbox allow-hosts                         # what the shared session may reach
  k8e sandbox allow-hosts $SID                    # what that session may reach
  k8e sandbox allow-hosts $SID --add api.example.com,db.example.com:5432
  k8e sandbox allow-hosts $SID --remove api.example.com      # open connections are cut
  k8e sandbox allow-hosts $SID 'example.com,*.example.com,!bad.example.com,10.1.0.0/16:22'
  k8e sandbox allow-hosts $SID --clear            # nothing at all
  k8e sandbox allow-hosts $SID --defaults         # the server's default list again
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
  k8e sandbox read --raw $SID picture.png > picture.png     # binary files: only so
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
    "sandbox-apikey": """examples:
  k8e sandbox-apikey create laptop                     # 30 days; the text is shown only now
  k8e sandbox-apikey create phone --role approver --owner uid:1000 --ttl never
  k8e sandbox-apikey list --output table
  k8e sandbox-apikey delete laptop                     # also revokes its certificates, at once
""",
    "sandbox-mcp": """examples:
  claude mcp add k8e-sandbox -- k8e sandbox-mcp        # agents start it; it starts the server
  k8e sandbox-mcp --tenant-id my-project               # one session that stays
  k8e sandbox-mcp --http --http-addr 127.0.0.1:8811    # for agents that want a URL: http://127.0.0.1:8811/mcp
  k8e sandbox-mcp --http --http-addr 0.0.0.0:8811 --require-key
""",
    "sandbox-install-skill": """examples:
  k8e sandbox-install-skill                            # for every agent that is in use here
  k8e sandbox-install-skill claude --dry-run           # show what would change
  k8e sandbox-install-skill cursor --http              # an address instead of a command
  k8e sandbox-install-skill --uninstall                # take it all away again
""",
    "a2a": """A message to it is code to run (a fenced block, `$ ` lines, or a data part), a task is the run; each contextId has
a sandbox of its own. The card says it all: /.well-known/agent-card.json. On this machine its own user needs no key.

examples:
  k8e a2a                                              # http://127.0.0.1:8822, and the server if none runs
  curl -s http://127.0.0.1:8822/.well-known/agent-card.json | jq .skills
  k8e a2a --addr 0.0.0.0:8822 --require-key            # from elsewhere everybody needs an API key
  k8e a2a --require-key --public-url https://agents.example.com   # behind a proxy that has the certificate
""",
    "server": SERVER,
    "audit": """examples:
  k8e audit verify                                # exit 1 when a record was altered, removed or added
  k8e audit show --session-id $SID | jq -r '[.time, .identity, .rpc, .outcome] | @tsv'
""",
    "doctor": """examples:
  k8e doctor
  k8e doctor --json | jq '.checks[] | select(.ok or .optional | not)'
  sudo k8e doctor --fix
  k8e sandbox doctor                                   # the same, for those who have the short names
""",
    "setup": """example:
  sudo k8e setup                                  # before the first use, for instance in an image
""",
}
"""Below each command's flags."""
