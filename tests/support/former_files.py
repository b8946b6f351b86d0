"""Files as earlier versions wrote them: their schemas, word for word, with something in every table."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

__all__ = ["APPROVALS", "ENGINE", "EVENTS", "SECRETS", "SPEC", "write"]

SPEC = (
    '{"session_id": "s", "tenant": "t", "runtime": "container", "image": "host", "limits": {"cpus": 0.5}, '
    '"env": {"RAW": "\\udcff\\u0000"}, "allowed_hosts": ["pypi.org"], "user": ""}'
)
"""As it was when there were few fields."""
ENGINE = (
    f"""
CREATE TABLE sandboxes (
    id TEXT PRIMARY KEY, runtime TEXT NOT NULL, image TEXT NOT NULL, memory_bytes INTEGER NOT NULL,
    disk_bytes INTEGER NOT NULL, phase TEXT NOT NULL, created_at REAL NOT NULL) STRICT;
CREATE TABLE sessions (
    owner TEXT NOT NULL, session_id TEXT NOT NULL, sandbox TEXT NOT NULL, phase TEXT NOT NULL, spec TEXT NOT NULL,
    parent TEXT NOT NULL, workspace TEXT NOT NULL, warm INTEGER NOT NULL, detail TEXT NOT NULL,
    created_at REAL NOT NULL, expires_at REAL NOT NULL, idle_timeout_s REAL NOT NULL, last_used REAL NOT NULL,
    PRIMARY KEY (owner, session_id)) STRICT;
CREATE TABLE runs (
    id TEXT PRIMARY KEY, owner TEXT NOT NULL, session_id TEXT NOT NULL, started_at REAL NOT NULL,
    outcome TEXT NOT NULL, truncated INTEGER NOT NULL) STRICT;
CREATE TABLE terminals (
    id TEXT PRIMARY KEY, owner TEXT NOT NULL, session_id TEXT NOT NULL, pid INTEGER NOT NULL) STRICT;
CREATE TABLE workspaces (
    owner TEXT NOT NULL, tenant TEXT NOT NULL, id TEXT NOT NULL, disk_bytes INTEGER NOT NULL, last_used REAL NOT NULL,
    PRIMARY KEY (owner, tenant)) STRICT;
INSERT INTO sandboxes VALUES ('sb-1', 'container', 'host', 1, 1, 'Warm', 0);
INSERT INTO sessions VALUES ('cert:Zoë "z"', 's', 'sb-2', 'Active', '{SPEC}', '', 'ws-1', 1, '',
    1763500000.1234567, 9e999, 3600, 1763500001.5);
INSERT INTO sessions VALUES ('cert:Zoë "z"', 'child', 'sb-3', 'Failed', '{SPEC}', 's', '', 0, 'it died' || char(10),
    1, 2.5, 0, 4);
INSERT INTO runs VALUES ('run-1', 'cert:Zoë "z"', 's', 1763500002.25, '', 0);
INSERT INTO runs VALUES ('run-2', 'cert:Zoë "z"', 's', 3, '{{"status": "failed", "exit_code": 137, "signal": 9,
    "reason": "killed", "detail": "by \\"x\\"", "duration_ms": 5, "denied": [{{"host": "a.example", "port": 443,
    "reason": "not on the list"}}]}}', 1);
INSERT INTO runs VALUES ('run-3', 'cert:Zoë "z"', 's', 4, '{{"status": "completed", "exit_code": 0, "signal": 0,
    "reason": "", "detail": "", "duration_ms": 5}}', 0);
INSERT INTO terminals VALUES ('term-1', 'cert:Zoë "z"', 's', 42);
INSERT INTO workspaces VALUES ('cert:Zoë "z"', 't', 'ws-1', 1024, 5.5);
""",
    """ALTER TABLE workspaces ADD COLUMN gates TEXT NOT NULL DEFAULT '{}';
INSERT INTO workspaces VALUES ('uid:0', 'gated', 'ws-2', 1, 0, '{"egress": true, "commands": ["rm"]}');
""",
    """ALTER TABLE runs ADD COLUMN command TEXT NOT NULL DEFAULT '';
INSERT INTO runs VALUES ('run-4', 'cert:Zoë "z"', 'child', 5, '', 0, 'make all');
""",
    "DROP TABLE sandboxes;",
    """
ALTER TABLE sessions ADD COLUMN gateway TEXT NOT NULL DEFAULT '';
ALTER TABLE sessions ADD COLUMN epoch INTEGER NOT NULL DEFAULT 0;
UPDATE sessions SET gateway = 'gw-1', epoch = 7;
""",
)
"""Each step makes the next format of the one before."""
APPROVALS = (
    """
CREATE TABLE approvals (
    approval_id TEXT PRIMARY KEY, owner TEXT NOT NULL, session_id TEXT NOT NULL, sandbox TEXT NOT NULL,
    action TEXT NOT NULL, asked_by TEXT NOT NULL, asked_at REAL NOT NULL, expires_at REAL NOT NULL,
    status TEXT NOT NULL, decided_by TEXT NOT NULL, reason TEXT NOT NULL, decided_at REAL NOT NULL) STRICT;
INSERT INTO approvals VALUES ('a', 'uid:1000', 's', 'sb-1', 'drop', 'uid:1000', 1000, 1300, 'pending', '', '', 0);
""",
    """ALTER TABLE approvals ADD COLUMN is_gate INTEGER NOT NULL DEFAULT 0;
INSERT INTO approvals VALUES ('b', 'uid:1000', 's', 'sb-1', 'two' || char(10) || 'lines', 'uid:1000', 900.5, 1200,
    'rejected', 'key:phone', 'no', 950.25, 1);
""",
)
SECRETS = (
    """
CREATE TABLE secrets (
    owner TEXT NOT NULL, name TEXT NOT NULL, key TEXT NOT NULL, sealed BLOB NOT NULL, updated_at REAL NOT NULL,
    PRIMARY KEY (owner, name, key)) STRICT;
""",
)
EVENTS = (
    """
CREATE TABLE events (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, at REAL NOT NULL, owner TEXT NOT NULL, session_id TEXT NOT NULL,
    kind TEXT NOT NULL, fields TEXT NOT NULL) STRICT;
CREATE INDEX events_by_session ON events (owner, session_id, seq);
INSERT INTO events (at, owner, session_id, kind, fields) VALUES (1.5, 'uid:1', 'sess-here', 'session.created', '{"warm":true}');
""",
)


def write(path: Path, scripts: tuple[str, ...], *more: tuple[str, tuple[object, ...]]) -> None:
    """A file of the format that the last of the scripts made."""
    with contextlib.closing(sqlite3.connect(path)) as file:
        file.executescript("".join(scripts))
        for statement, values in more:
            file.execute(statement, values)
        file.execute(f"PRAGMA user_version={len(scripts)}")
        file.commit()
