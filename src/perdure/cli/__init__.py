"""The `perdure` command, one module per group of commands."""
