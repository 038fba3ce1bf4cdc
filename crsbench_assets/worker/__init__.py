"""One stage of one partition, without Dagster: read, compute, commit.

``python -m crsbench_assets.worker --stage probe --encoder E --dataset D`` is the same entry for a shell, a cluster
scheduler or a test. Dagster's assets call :func:`crsbench_assets.worker.run.run_stage`.
"""
