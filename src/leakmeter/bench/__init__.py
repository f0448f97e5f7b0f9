"""The papers' tables, run again here and set beside the printed numbers."""
