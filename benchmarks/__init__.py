"""Measurements: what the documentation's figures are made by."""
