"""Questions that change nothing: why this number (`explain`), what is installed here (`doctor`).

`questions` takes them from the command line. A recipe is explained by the rewriter's own runs and plan (`explain`),
model by model (`model`), with what holds in all worlds of its run (`everywhere`); a checkpoint is read by `run_config`,
and `loading` says what becomes of it.
"""
