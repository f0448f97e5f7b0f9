"""The curious side: reconstructs a client's examples from its update. Sees no ground truth."""
