"""The kernel contract: no kernel is used before it has passed its gates here.

Each kernel is registered with its shape envelope, its rule for NaN and infinity, its order of sums, a float64
reference whose tolerance is derived from formula and data, and its launch. Four gates run on every device:
nonfinite, repeat, shapes and sums; planted faults must turn them red. `python -m flashnext.contract` runs
them and writes a receipt.
"""
