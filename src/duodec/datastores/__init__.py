"""Find the datastores of this machine, which the method `rest` drafts from."""

from duodec.datastores.places import default_folder, default_path, fingerprint, open_for

__all__ = ["default_folder", "default_path", "fingerprint", "open_for"]
