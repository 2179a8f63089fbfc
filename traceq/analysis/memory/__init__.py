"""A memory snapshot's history: the curve, lifetimes, categories, the peak."""
