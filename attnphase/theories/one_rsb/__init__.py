"""One-step replica-symmetry breaking (1RSB), solved for the ridge: docs/one_rsb.md."""
