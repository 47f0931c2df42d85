"""Tools for testing workflows and backends: the same ones that Perdure tests itself with."""
