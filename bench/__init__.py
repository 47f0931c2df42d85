"""Measurements of the engine, always beside a bare program in the same run: only ratios mean something."""
