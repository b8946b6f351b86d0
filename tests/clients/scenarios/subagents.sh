#!/usr/bin/env bash
# Two children of one session work at the same time on files that all three see.
set -euo pipefail

parent=$(k8e sandbox create | jq -r .session_id)
first=$(k8e sandbox subagent "$parent" | jq -r .session_id)
second=$(k8e sandbox subagent "$parent" | jq -r .session_id)

echo "data for both" | k8e sandbox write "$parent" /workspace/input.txt

# Each waits for the other's file, so they finish only if they run at once and see each other's work.
wait_for='until [ -s "$OTHER" ]; do sleep 0.05; done; cat input.txt "$OTHER"'
k8e sandbox run --raw --timeout 60 --session-id "$first" "echo from-first >a.txt; OTHER=b.txt; $wait_for" >"$HOME/first" &
one=$!
k8e sandbox run --raw --timeout 60 --session-id "$second" "echo from-second >b.txt; OTHER=a.txt; $wait_for" >"$HOME/second" &
two=$!
wait "$one"
wait "$two"

[ "$(cat "$HOME/first")" = $'data for both\nfrom-second' ]
[ "$(cat "$HOME/second")" = $'data for both\nfrom-first' ]
[ "$(k8e sandbox read --raw "$parent" a.txt)" = from-first ]

k8e sandbox destroy "$parent"
! k8e sandbox get "$first" # children end with their parent
