"""The synchronous client of the JSON API, for programs that live a few milliseconds: no event loop, no schema."""
