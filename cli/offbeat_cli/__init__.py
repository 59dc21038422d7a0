"""The operator's command `offbeat`."""
