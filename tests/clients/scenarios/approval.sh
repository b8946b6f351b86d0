#!/usr/bin/env bash
# An agent asks, a person with a key of their own says yes from elsewhere, and the agent goes on.
set -euo pipefail

owner=$(k8e sandbox whoami | jq -r .owner)
name=phone-$$
key=$(k8e sandbox-apikey create "$name" --role approver --owner "$owner" | jq -r .key)
trap 'k8e sandbox-apikey delete "$name"' EXIT
session=$(k8e sandbox create | jq -r .session_id)

# With --no-wait the id comes at once.
pending=$(k8e sandbox confirm "$session" "drop the table" --no-wait | jq -r .approval_id)

# It waits, and says on standard error how to approve it.
k8e sandbox confirm "$session" "delete the old backups" --timeout 90 >"$HOME/answer" 2>"$HOME/prompt" &
asking=$!
until grep -q 'k8e sandbox approve' "$HOME/prompt"; do sleep 0.05; done
grep -q 'delete the old backups' "$HOME/prompt"
approve=$(grep -o 'k8e sandbox approve [^ ]*' "$HOME/prompt" | head -1)

# Whoever asks can never approve without a person at a terminal; nor can the approver do anything else.
if setsid -w $approve; then exit 1; fi
if K8E_SANDBOX_APIKEY=$key k8e sandbox run --session-id "$session" true; then exit 1; fi

[ "$(K8E_SANDBOX_APIKEY=$key k8e sandbox approvals | jq --arg id "$session" '[.approvals[] | select(.session_id == $id)] | length')" = 2 ]
K8E_SANDBOX_APIKEY=$key $approve --reason "go ahead"
wait "$asking"
[ "$(jq -r .approved "$HOME/answer")" = true ]
[ "$(jq -r .decided_by "$HOME/answer")" = "key:$name" ]

# A rejection ends the question with exit code 1.
K8E_SANDBOX_APIKEY=$key k8e sandbox approve "$pending" --reject
[ "$(k8e sandbox approvals --all | jq -r --arg id "$pending" '.approvals[] | select(.approval_id == $id) | .status')" = rejected ]
if k8e sandbox confirm "$session" "nobody answers this" --timeout 0.5; then exit 1; fi

k8e sandbox destroy "$session"
