/* SPDX-License-Identifier: Apache-2.0 */
/* A better order for a plan: searched by the times of its stages and links, and taken if it fits
 * and the replay of the actual lists is faster. */
#ifndef OPI_IMPROVE_PLAN_H
#define OPI_IMPROVE_PLAN_H

#include "partition/study/improve/ask.h"

/* The search that plans are made with. */
extern const opi_order_search opi_study_search;

#endif /* OPI_IMPROVE_PLAN_H */
