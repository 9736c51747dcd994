"""The loss of samples in torch, in batches, and where torch computes: on a CPU or a GPU."""
