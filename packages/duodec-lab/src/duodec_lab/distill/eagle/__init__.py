"""Make an EAGLE-3 head for a GGUF target: one layer that reads its hidden states."""
