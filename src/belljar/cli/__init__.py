"""The command line: one file per verb. What is heavy is imported where it is needed."""
