"""How fast methods decode, and what their drafts are worth."""
