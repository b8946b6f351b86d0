"""The command line: one file per group of commands; nothing heavy is imported before a command needs it."""
