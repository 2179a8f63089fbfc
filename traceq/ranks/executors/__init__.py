"""Executors: one task per file, in local processes or on a Dask cluster.

The seam is ``concurrent.futures.Executor``. ``local.Workers`` runs tasks in processes
of this machine, ``dask.connect`` on the workers of a Dask cluster, and
``tasks.run_all`` does not know which of them it was given.
"""
