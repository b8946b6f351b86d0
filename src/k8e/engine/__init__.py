"""The engine: sessions and everything that belongs to one; it knows no protocol, no host and no caller."""
