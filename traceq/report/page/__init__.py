"""HTML pages of `traceq report` and --format html, made of parts."""
