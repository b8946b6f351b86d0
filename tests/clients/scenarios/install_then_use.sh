#!/usr/bin/env bash
# Install a package, then use it in the next run: both share the session that was made by itself. The wheel is a local
# one, so that no registry is needed.
set -euo pipefail
cd "$(mktemp -d)"

mkdir -p greeting greeting-1.0.dist-info
echo 'WORD = "installed"' >greeting/__init__.py
printf 'Metadata-Version: 2.1\nName: greeting\nVersion: 1.0\n' >greeting-1.0.dist-info/METADATA
printf 'Wheel-Version: 1.0\nGenerator: hand\nRoot-Is-Purelib: true\nTag: py3-none-any\n' >greeting-1.0.dist-info/WHEEL
printf 'greeting/__init__.py,,\ngreeting-1.0.dist-info/METADATA,,\ngreeting-1.0.dist-info/WHEEL,,\n' \
    >greeting-1.0.dist-info/RECORD
python3 -m zipfile -c greeting-1.0-py3-none-any.whl greeting greeting-1.0.dist-info

session=$(k8e sandbox run true | jq -r .session_id)
k8e sandbox write "$session" greeting-1.0-py3-none-any.whl <greeting-1.0-py3-none-any.whl
k8e sandbox run --timeout 60 "pip install --no-index ./greeting-1.0-py3-none-any.whl" | jq -r .stdout

answer=$(k8e sandbox run --lang python "import greeting; print(greeting.WORD)")
[ "$(jq -r .stdout <<<"$answer")" = installed ]
[ "$(jq -r .session_id <<<"$answer")" = "$session" ]
