"""The parts of the page: each returns its section, or none with nothing to show."""
