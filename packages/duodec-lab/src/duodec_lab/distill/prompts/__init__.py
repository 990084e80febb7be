"""Collect the prompts that a target is to answer: in files, of our own, or of the target's."""
