"""Read bodies of requests and write responses, in the shapes of the APIs that are served."""
