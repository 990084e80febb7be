"""Build datastores of the user's own text, which the method `rest` drafts from."""

from duodec_lab.datastores.building import Built, Progress, Stage, build

__all__ = ["Built", "Progress", "Stage", "build"]
