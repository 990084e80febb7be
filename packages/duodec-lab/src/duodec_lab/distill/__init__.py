"""Make a draft for a target: record its completions, train on them, write a file, judge it."""
