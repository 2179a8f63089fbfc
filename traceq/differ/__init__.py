"""What changed in a step from one recording to another, and why."""
