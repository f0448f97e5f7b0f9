"""Reruns the papers' tables and compares the results with the printed numbers."""
