"""One module per group of claims; see `isotune.claims` for how to write a judge."""
