"""Simulation of the step: its model, its run, its calibration and what bounds it."""
