"""Serve ``/v1/responses``: OpenAI's newer interface, in the part that its client uses."""
