"""The minimiser of the local problem, for all models: what they differ in is data, and functions reached by address.

Ordinary Python, which also runs without Numba's compiler (``NUMBA_DISABLE_JIT=1``); `attnphase.kernels.shared` compiles
it once for a machine.

``model`` is what there is to know of a model, ``values`` are arguments and ``layouts`` how these are handed over:
whoever calls the machine code needs these and ``constants`` alone, and no Numba.

Where a loss is smooth and has few fields, ``lanes`` does nodes side by side.  For kinks, or very many fields,
``linear_algebra``, ``along_kinks`` from starts ``at_kinks``, and ``search`` lead up to the minima of one sample.  Both
have their ``starts`` and ``ends``.  Around the minimiser are ``derivatives``, ``trained`` and ``passes``.
"""
