"""Joe and Kuo's direction numbers of a Sobol sequence: the table ``new-joe-kuo-6.21201``, its first dimensions.

S. Joe and F. Y. Kuo, *Constructing Sobol sequences with better two-dimensional projections*, SIAM J. Sci. Comput. 30,
2635-2654 (2008); https://web.maths.unsw.edu.au/~fkuo/sobol.  The table comes with this licence:

Copyright (c) 2008, Frances Y. Kuo and Stephen Joe
All rights reserved.

Redistribution and use in source and binary forms, with or without modification, are permitted provided that the
following conditions are met:

* Redistributions of source code must retain the above copyright notice, this list of conditions and the following
  disclaimer.
* Redistributions in binary form must reproduce the above copyright notice, this list of conditions and the following
  disclaimer in the documentation and/or other materials provided with the distribution.
* Neither the names of the copyright holders nor the names of the University of New South Wales and the University of
  Waikato and its contributors may be used to endorse or promote products derived from this software without specific
  prior written permission.

THIS SOFTWARE IS PROVIDED BY THE COPYRIGHT HOLDERS "AS IS" AND ANY EXPRESS OR IMPLIED WARRANTIES, INCLUDING, BUT NOT
LIMITED TO, THE IMPLIED WARRANTIES OF MERCHANTABILITY AND FITNESS FOR A PARTICULAR PURPOSE ARE DISCLAIMED. IN NO EVENT
SHALL THE COPYRIGHT HOLDERS BE LIABLE FOR ANY DIRECT, INDIRECT, INCIDENTAL, SPECIAL, EXEMPLARY, OR CONSEQUENTIAL DAMAGES
(INCLUDING, BUT NOT LIMITED TO, PROCUREMENT OF SUBSTITUTE GOODS OR SERVICES; LOSS OF USE, DATA, OR PROFITS; OR BUSINESS
INTERRUPTION) HOWEVER CAUSED AND ON ANY THEORY OF LIABILITY, WHETHER IN CONTRACT, STRICT LIABILITY, OR TORT (INCLUDING
NEGLIGENCE OR OTHERWISE) ARISING IN ANY WAY OUT OF THE USE OF THIS SOFTWARE, EVEN IF ADVISED OF THE POSSIBILITY OF SUCH
DAMAGE.
"""

from __future__ import annotations

__all__ = ["DIRECTIONS"]

DIRECTIONS: tuple[tuple[int, tuple[int, ...]], ...] = (
    (0, (1,)),
    (1, (1, 3)),
    (1, (1, 3, 1)),
    (2, (1, 1, 1)),
    (1, (1, 1, 3, 3)),
    (4, (1, 3, 5, 13)),
    (2, (1, 1, 5, 5, 17)),
    (4, (1, 1, 5, 5, 5)),
    (7, (1, 1, 7, 11, 19)),
    (11, (1, 1, 5, 1, 1)),
    (13, (1, 1, 1, 3, 11)),
    (14, (1, 3, 5, 5, 31)),
    (1, (1, 3, 3, 9, 7, 49)),
    (13, (1, 1, 1, 15, 21, 21)),
    (16, (1, 3, 1, 13, 27, 49)),
    (19, (1, 1, 1, 15, 7, 5)),
    (22, (1, 3, 1, 15, 13, 25)),
    (25, (1, 1, 5, 5, 19, 61)),
    (1, (1, 3, 7, 11, 23, 15, 103)),
    (4, (1, 3, 7, 13, 13, 15, 69)),
    (7, (1, 1, 3, 13, 7, 35, 63)),
    (8, (1, 3, 5, 9, 1, 25, 53)),
    (14, (1, 3, 1, 13, 9, 35, 107)),
    (19, (1, 3, 1, 5, 27, 61, 31)),
    (21, (1, 1, 5, 11, 19, 41, 61)),
    (28, (1, 3, 5, 3, 3, 13, 69)),
    (31, (1, 1, 7, 13, 1, 19, 1)),
    (32, (1, 3, 7, 5, 13, 19, 59)),
    (37, (1, 1, 3, 9, 25, 29, 41)),
    (41, (1, 3, 5, 13, 23, 1, 55)),
    (42, (1, 3, 7, 3, 13, 59, 17)),
    (50, (1, 3, 1, 3, 5, 53, 69)),
    (55, (1, 1, 5, 5, 23, 33, 13)),
    (56, (1, 1, 7, 7, 1, 61, 123)),
    (59, (1, 1, 7, 9, 13, 61, 49)),
    (62, (1, 3, 3, 5, 3, 55, 33)),
    (14, (1, 3, 1, 15, 31, 13, 49, 245)),
    (21, (1, 3, 5, 15, 31, 59, 63, 97)),
    (22, (1, 3, 1, 11, 11, 11, 77, 249)),
    (38, (1, 3, 1, 11, 27, 43, 71, 9)),
    (47, (1, 1, 7, 15, 21, 11, 81, 45)),
    (49, (1, 3, 7, 3, 25, 31, 65, 79)),
    (50, (1, 3, 1, 1, 19, 11, 3, 205)),
    (52, (1, 1, 5, 9, 19, 21, 29, 157)),
    (56, (1, 3, 7, 11, 1, 33, 89, 185)),
    (67, (1, 3, 3, 3, 15, 9, 79, 71)),
    (70, (1, 3, 7, 11, 15, 39, 119, 27)),
    (84, (1, 1, 3, 1, 11, 31, 97, 225)),
    (97, (1, 1, 1, 3, 23, 43, 57, 177)),
    (103, (1, 3, 7, 7, 17, 17, 37, 71)),
    (115, (1, 3, 1, 5, 27, 63, 123, 213)),
    (122, (1, 1, 3, 5, 11, 43, 53, 133)),
    (8, (1, 3, 5, 5, 29, 17, 47, 173, 479)),
    (13, (1, 3, 3, 11, 3, 1, 109, 9, 69)),
    (16, (1, 1, 1, 5, 17, 39, 23, 5, 343)),
    (22, (1, 3, 1, 5, 25, 15, 31, 103, 499)),
    (25, (1, 1, 1, 11, 11, 17, 63, 105, 183)),
    (44, (1, 1, 5, 11, 9, 29, 97, 231, 363)),
    (47, (1, 1, 5, 15, 19, 45, 41, 7, 383)),
    (52, (1, 3, 7, 7, 31, 19, 83, 137, 221)),
    (55, (1, 1, 1, 3, 23, 15, 111, 223, 83)),
    (59, (1, 1, 5, 13, 31, 15, 55, 25, 161)),
    (62, (1, 1, 3, 13, 25, 47, 39, 87, 257)),
)
"""From the second dimension on: the inner coefficients ``a`` of a primitive polynomial over the field of two elements,
as the bits of a number, and the first numbers ``m``, as many as the polynomial's degree."""
