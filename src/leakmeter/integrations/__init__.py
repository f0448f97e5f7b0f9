"""Records updates inside other frameworks; each module needs its framework installed."""
