"""What all reports share: safe text, columns, screens."""
