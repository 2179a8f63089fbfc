"""Many ranks: one verdict for a job, from what each rank recorded.

One trace becomes one digest (``digest_of``, a task that any executor can run), and the
digests of a job become one result (``job.reduce``): what was matched, how the clocks
differ, who waited for whom, what a step would take without that, and why.
"""
