"""What a session may reach, as pure values: entries, decisions, and the addresses that nobody may reach.

Nothing here opens a socket or knows how a decision is enforced, so the same rules serve every substrate.
"""
