"""The step simulated: its model, its run, its calibration and what bounds it."""
