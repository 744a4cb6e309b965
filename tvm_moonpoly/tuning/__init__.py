"""The offline stage: what is measured on a machine, and the log that comes of it."""
