"""Every table by its name on the command line."""

from __future__ import annotations

from leakmeter.bench.table import Table
from leakmeter.bench.tables import agic, auto, ig, nlsme, retrace, sapag, sme
from leakmeter.errors import unknown

TABLES: dict[str, Table] = {
    table.id: table
    for paper in (sme, nlsme, agic, ig, sapag, retrace, auto)
    for table in paper.TABLES
}


def find(name: str) -> Table:
    """The table called ``name``."""
    if name not in TABLES:
        raise unknown("table", name, TABLES)
    return TABLES[name]
