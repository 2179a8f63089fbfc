"""Analyses of a trace: frames in, frames out, no thresholds, no text."""
