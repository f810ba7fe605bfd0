"""What people read: tables for the terminal and for Markdown, and the progress of a run; floor 4 of the suite."""
