"""The compiled minimiser of the local problem: a package that a build copies, with the local problem of its model.

Ordinary Python, which also runs without Numba's compiler (``NUMBA_DISABLE_JIT=1``).  ``local_problem`` is the one
module that depends on the model: here it holds the square loss; in the copy in the user's cache it is generated.

``constants``, ``values`` and ``compiled`` are what all modules share.  Where a loss is smooth, Newton steps in the
lanes of a block, ``lanes`` and ``steps``, are generated too; ``lane`` is what happens between them.  For kinks
``linear_algebra``, ``along_kinks`` from starts ``at_kinks``, and ``search`` lead up to the minima of one
sample, and so they do for very many fields.

The entry points are ``together``, ``blocks`` and ``nodes`` for the theory, ``sample_blocks`` and ``samples`` for
samples at finite d, with their arguments' types in ``layouts``.
"""
