"""The weights on the way to their minimum: one-pass SGD and gradient flow in the limit of high dimension."""
