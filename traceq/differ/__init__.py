"""Changes of a step from one recording to another, and their causes."""
