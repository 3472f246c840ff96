/* SPDX-License-Identifier: Apache-2.0 */
/* Patterns in the numbers of a constant that tell a buffer from a parameter; private to
 * loader/gradient.
 *
 * Every test ends at the first number that does not fit, and the costly ones look at a sample, so
 * that weights are hardly read. All answer false where the data is not there.
 */
#ifndef OPI_GRADIENT_VALUES_H
#define OPI_GRADIENT_VALUES_H

#include "loader/graph/graph.h"

/* All numbers are 0 or at most -100, one of them is; several may be equal. */
bool opi_values_mask(const opi_value *value);
/* Some number is at most -100. */
bool opi_values_masked(const opi_value *value);
/* All numbers are equal. */
bool opi_values_equal(const opi_value *value);
/* There are exactly two different numbers. */
bool opi_values_two(const opi_value *value);
/* Along some axis, numbers come in pairs of a sine and a cosine: the sums of their squares are one
 * number. Rows of zeros (padding, a class token) are left out. */
bool opi_values_pairs(const opi_value *value);
/* Along some axis, every column is a sine or a cosine of the position (constants among them). */
bool opi_values_wave(const opi_value *value);
/* Along some axis, every column is affine in the position, and most are not constant. */
bool opi_values_affine(const opi_value *value);
/* All are positive, and their binary logarithms are multiples of 1/64: slopes of ALiBi. */
bool opi_values_slopes(const opi_value *value);
/* Equal numbers (or one), all 0 or all 1. */
bool opi_values_neutral(const opi_value *value);
/* Number by number 1 - x, 1 + x or -x of the other's, in order. */
bool opi_values_follow(const opi_value *value, const opi_value *other);
/* At most a quarter of the numbers are different ones, and they are not all equal: coordinates. */
bool opi_values_repeat(const opi_value *value);

#endif /* OPI_GRADIENT_VALUES_H */
