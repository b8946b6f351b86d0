#!/usr/bin/env bash
# A script and its data go in, the script runs, its result comes out.
set -euo pipefail

session=$(k8e sandbox create | jq -r .session_id)

k8e sandbox write "$session" /workspace/sum.py <<'PYTHON'
import csv, json
with open("/workspace/prices.csv") as file:
    rows = list(csv.DictReader(file))
with open("/workspace/result.json", "w") as file:
    json.dump({"rows": len(rows), "total": sum(float(row["price"]) for row in rows)}, file)
PYTHON
printf 'name,price\ntea,2.5\ncake,4\n' | k8e sandbox write "$session" /workspace/prices.csv

k8e sandbox run --session-id "$session" "python3 /workspace/sum.py"
[ "$(k8e sandbox read --raw "$session" /workspace/result.json | jq -c .)" = '{"rows":2,"total":6.5}' ]

k8e sandbox destroy "$session"
[ ! -e ~/.k8e/sandbox/default/state.json ] # a session of one's own leaves no state behind
