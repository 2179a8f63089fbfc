"""The questions that traceq answers, as functions: Python and the commands call them.

``traceq`` itself exports them, so that nothing else is loaded with one of them.
"""
