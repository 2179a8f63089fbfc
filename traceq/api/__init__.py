"""Public functions of traceq, which Python code and the commands call.

``traceq`` itself exports them, so that nothing else is loaded with one of them.
"""
