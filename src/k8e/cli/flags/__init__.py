"""The flags of commands, one file per group; each is loaded only when one of its commands was typed."""
