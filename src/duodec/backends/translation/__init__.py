"""Let a draft model draft for a target whose vocabulary is another one (arXiv 2502.05202).

The translated model is a draft model over the target's tokens: whoever drafts with it, verifies or
plans never learns of a second vocabulary. What it says is only ever a guess, so no text depends on
how well it is translated.
"""
