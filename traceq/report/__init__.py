"""Results as text: one function a format, and nothing here prints."""
