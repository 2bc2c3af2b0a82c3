"""Training of the demo checkpoint: its text, its sizes and its steps."""
