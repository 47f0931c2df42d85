"""Workflows that are data: published, found, bundled."""
