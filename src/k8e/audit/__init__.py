"""The audit trail: who did what to which session, when and with what outcome, in a chain that shows every change.

What it can show: a record that was altered, removed, put elsewhere, cut off the end or added by anybody who has not
the server's key. What it cannot: an older trail put back whole together with its own head.
"""

from k8e.audit.chain import Fields
from k8e.audit.files import BUSY, MAIN
from k8e.audit.journal import Journal
from k8e.audit.verify import BUSY_NOTE, Finding, records, verify

__all__ = ["BUSY", "BUSY_NOTE", "MAIN", "Fields", "Finding", "Journal", "records", "verify"]
