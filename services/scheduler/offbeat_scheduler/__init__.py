"""The scheduler: synchronization models, commit-rate search, membership, runs."""
