#!/usr/bin/env bash
# A session of one's own that may reach one host: others are refused by name, and the answer says which.
set -euo pipefail

SID=$(k8e sandbox create --allowed-hosts allowed.example | jq -r .session_id)
[ "$(k8e sandbox allow-hosts "$SID" | jq -c .allowed_hosts)" = '["allowed.example"]' ]

answer=$(k8e sandbox run --session-id "$SID" "curl -sS https://other.example" || true)
[ "$(jq -r .exit_code <<<"$answer")" != 0 ]
[ "$(jq -r '.egress_denied[0].host' <<<"$answer")" = other.example ]

# The control: the host on the list is not refused by the list, whatever the network says about it.
answer=$(k8e sandbox run --session-id "$SID" "curl -sS --max-time 10 https://allowed.example || true")
[ "$(jq -r '[.egress_denied[]? | select(.reason | test("list"))] | length' <<<"$answer")" = 0 ]
[ "$(k8e sandbox egress "$SID" | jq -rs '[.[] | select(.name == "other.example" and .verdict == "denied")] | length > 0')" = true ]

k8e sandbox destroy "$SID"
[ "$(k8e sandbox get "$SID" | jq -r .error)" = "not found" ]
