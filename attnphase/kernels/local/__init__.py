"""The compiled minimiser of the local problem: a package that a build copies, with the local problem of its model.

Ordinary Python, which also runs without Numba's compiler (``NUMBA_DISABLE_JIT=1``).  ``local_problem`` is the one
module that depends on the model: here it holds the square loss; in the copy in the user's cache it is generated.

``constants``, ``values`` and ``compiled`` are what all modules share; ``linear_algebra``, ``descent``, for losses with
kinks ``bracket`` or ``along_kinks`` from starts ``at_kinks``, and ``search`` lead up to the minima of one sample;
``nodes`` and ``samples`` are the ways in, for the theory and for samples at finite d, with their arguments' types in
``layouts``.
"""
