"""How fast forward passes and the work on their rows are on a CPU."""
