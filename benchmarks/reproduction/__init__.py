"""The source's experiments: scenarios, the command that runs them all, and the page it writes."""
