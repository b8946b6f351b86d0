"""What the engine keeps on disk: records with versions (`Store`), and logs (`Log`).

`changes` says what a store can do, `store` and `log` are the two interfaces, `codec` turns records into JSON and back, and
`writer` shares transactions among callers. SQL is in `sqlite` alone.
"""

from k8e.engine.store.changes import Change, Changed, Kind, Put, Stored
from k8e.engine.store.entries import Entry, LoggedEntry
from k8e.engine.store.log import Log
from k8e.engine.store.store import Store
from k8e.engine.store.watch import Watch

__all__ = ["Change", "Changed", "Entry", "Kind", "Log", "LoggedEntry", "Put", "Store", "Stored", "Watch"]
