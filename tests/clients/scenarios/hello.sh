#!/usr/bin/env bash
# One line of Python, one line of JSON.
set -euo pipefail

answer=$(k8e sandbox run "print('hello')" --lang python)
[ "$(jq -r .stdout <<<"$answer")" = hello ]
[ "$(jq -r .status <<<"$answer")" = completed ]
[ "$(jq -r .exit_code <<<"$answer")" = 0 ]
