"""Foundations of every analysis: steady-state steps, idle gaps, kernel ownership."""
