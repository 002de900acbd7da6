"""Every op beside PyTorch's, in drawn cases: operands (draw.py), the table of ops (rows_*.py), what both make of a case and how far apart
they may be (compare.py), differences on purpose (documented.py), the program (run.py). scripts/differential.py runs it."""
