"""Generated from `proto/sandbox/v1/sandbox.proto` by `make proto`; never edited by hand."""
