/* SPDX-License-Identifier: Apache-2.0 */
/* Patterns in the numbers of a constant that tell a buffer from a parameter. Private to
 * loader/gradient.
 *
 * Each test stops at the first number that does not fit, and costly tests look at a sample, so
 * weights are hardly read. All return false if the data is absent.
 */
#ifndef OPI_GRADIENT_VALUES_H
#define OPI_GRADIENT_VALUES_H

#include "loader/graph/graph.h"

/* All numbers are 0 or at most -100, with at least one of the latter. */
bool opi_values_mask(const opi_value *value);
/* Some number is at most -100. */
bool opi_values_masked(const opi_value *value);
/* All numbers are equal. */
bool opi_values_equal(const opi_value *value);
/* There are exactly two distinct numbers. */
bool opi_values_two(const opi_value *value);
/* Along some axis, numbers come in pairs of sine and cosine: the sums of their squares are
 * constant. Rows of zeros (padding, a class token) are ignored. */
bool opi_values_pairs(const opi_value *value);
/* Along some axis, every column is a sine or a cosine of the position, or constant. */
bool opi_values_wave(const opi_value *value);
/* Along some axis, every column is affine in the position, and most are not constant. */
bool opi_values_affine(const opi_value *value);
/* All are positive, with binary logarithms that are multiples of 1/64: slopes of ALiBi. */
bool opi_values_slopes(const opi_value *value);
/* All 0 or all 1. */
bool opi_values_neutral(const opi_value *value);
/* Each number is 1 - x, 1 + x or -x of the other's, in order. */
bool opi_values_follow(const opi_value *value, const opi_value *other);
/* At most a quarter of the numbers are distinct, and not all are equal: coordinates. */
bool opi_values_repeat(const opi_value *value);

#endif /* OPI_GRADIENT_VALUES_H */
