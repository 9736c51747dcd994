"""Theories beside the replica-symmetric one, a package each: equations, map, settings, variables, dataset, text."""
