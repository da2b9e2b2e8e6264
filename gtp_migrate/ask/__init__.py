"""Questions that change nothing: why this number (`explain`), what is installed here (`doctor`).

`questions` takes them from the command line. A recipe is explained by the rewriter's own runs and plan; a checkpoint is
read by `run_config`, and `loading` says what becomes of it.
"""
