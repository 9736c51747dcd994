"""The local problem in torch: its loss in batches, and its minimiser for many nodes at once, on a CPU or a GPU."""
