"""Measure, prove and train: the commands of what is not needed to decode.

The engine finds them by `duodec.machine.plugins`, as it finds any package's, and never imports
them. They use `duodec_lab.bench`, `duodec_lab.exactness` and `duodec_lab.distill`.
"""
