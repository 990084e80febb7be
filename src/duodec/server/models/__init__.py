"""Load models, and run the requests of each on a scheduler in a thread of its own."""
