"""Bound what connections send, check who may ask, and write streams of events."""
