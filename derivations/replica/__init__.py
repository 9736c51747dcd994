"""The replica calculation: free entropy, saddle point, observables."""
