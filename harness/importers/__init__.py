"""What other tools measured, as runs of ours: their figures keep their own byte convention and protocol. Floor 3."""
