"""Let a draft model draft for a target that has another vocabulary (arXiv 2502.05202).

The translated model is a draft model over the target's tokens: code that drafts, verifies or plans
with it never learns of a second vocabulary. Its rows are only guesses, so no text depends on how
well it is translated.
"""
