"""The parameter server: store, gate, fold, checkpoint."""
