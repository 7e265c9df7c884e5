"""The tests themselves, one file per topic."""
