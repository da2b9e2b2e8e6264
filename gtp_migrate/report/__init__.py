"""One module an output. They only print what a run has found out."""
