"""Recorders for updates in other frameworks; each module needs its framework installed."""
