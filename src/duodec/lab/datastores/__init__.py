"""Build datastores of the user's own text, which the method `rest` drafts from."""

from duodec.lab.datastores.building import Built, Progress, Stage, build

__all__ = ["Built", "Progress", "Stage", "build"]
