"""The device's side: training loop, accumulated update, data, built-in tasks."""
