"""Build and find datastores of the user's own text, which the method `rest` drafts from."""

from duodec.datastores.building import Built, Progress, Stage, build
from duodec.datastores.places import default_folder, default_path, fingerprint, open_for

__all__ = [
    "Built",
    "Progress",
    "Stage",
    "build",
    "default_folder",
    "default_path",
    "fingerprint",
    "open_for",
]
