/* SPDX-License-Identifier: Apache-2.0 */
/* Entry of runtime/generate: requests of a host become passes over token rows, and their logits
 * tokens.
 *
 *   rules.h   sampling, its keys; folders of ONNX Runtime GenAI; traces of requests
 *   runner.h  whoever computes passes: a session, by runtime/rows, or a double in tests
 *   sequences.h  sequences, their turns, the thread that begins and ends passes
 *
 * Invariants
 * - A sequence's tokens depend on its ids, its sampling and its branch alone.
 * - No graph, plan or session is known here; passes leave by opi_pass_runner.
 * - Nothing is allocated while passes are computed.
 */
#ifndef OPI_GENERATE_H
#define OPI_GENERATE_H

#include "runtime/generate/rules.h"
#include "runtime/generate/runner.h"
#include "runtime/generate/sequences.h"

#endif /* OPI_GENERATE_H */
