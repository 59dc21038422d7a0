"""The generated stubs live in `offbeat.v1`; the services beside it."""
