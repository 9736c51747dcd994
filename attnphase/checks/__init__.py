"""Whether it holds: limits with a known answer, theory against experiment."""
