"""Make grammars of the formats that requests give their responses."""
