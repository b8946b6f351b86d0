"""The host's apt configuration, as far as sandboxes may have it: package sources without credentials, and their hosts."""
