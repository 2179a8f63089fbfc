"""From what a user names to recordings, with the settings of whoever asked."""
