"""One page of HTML to look at, made of parts: `traceq report` and --format html."""
