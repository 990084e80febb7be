"""Compare duodec on a CPU with other programs that decode there, by turns."""
