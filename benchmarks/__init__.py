"""What the README's figures are made with: one command each, `make bench NAME=...`."""
