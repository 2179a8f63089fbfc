"""Analyses of a trace or a memory snapshot: frames in, frames or small dataclasses out.

Each package builds on those above it here, and each module answers one question:

- ``base``: steady-state steps, idle gaps, sync calls, kernel ownership, the GPU's
  roofline, and the constants that the models assume, with their origin
- ``patterns``: what the program does: attention, matmuls, copies, loops, optimizers,
  collectives, decode iterations, compilation
- ``time``: where a step's time goes: kernels, causes of idle time, syncs, launch
  overhead, regions, modules, FLOP and MFU, roofline of ops, serving
- ``replay``: the step simulated with changes applied: model, calibration, what bounds
  it, critical path, accounts of the host's time and of the GPU's idle time
- ``memory``: a snapshot's history: curve, lifetimes, categories, peak, fragmentation,
  leaks, and a trace's own allocations
- ``summary``: the overview of a recording
- ``sweep``: how figures grow over recordings that differ in one label;
  ``configurations`` and ``sweep_series``: the runs of a sweep by label, their laws and
  crossings

What one family of rules alone asks is in ``rules/<family>/_*.py``. Sentences and
severities are made by rules and reports.
"""
