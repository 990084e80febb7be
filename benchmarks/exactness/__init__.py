"""Whether one seed gives one text."""
