"""The command line: one file a verb, each with its heavy imports inside; floor 4 of the suite."""
