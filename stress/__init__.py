"""Attack, fuzz and wear out what users run; each file is a program."""
