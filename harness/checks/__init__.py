"""What the doctor looks at, a file a concept: software, host, card, links. Pure: a machine in, findings out."""
