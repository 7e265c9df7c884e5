"""What can be asked for, one file per topic."""
