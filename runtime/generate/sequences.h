/* SPDX-License-Identifier: Apache-2.0 */
/* The engine of generation: sequences of a host, which become passes over a runner, whose logits
 * become tokens. The functions of opipe/generate.h, with its thread rules and errors.
 *
 *   host ► generate, append ► turns ► describe ► runner.begin ... runner.end ► sample ► callbacks
 *
 * A thread of the engine's own, for each replica, begins and ends passes, up to `groups` in flight.
 * If the host drives the session there is none: opi_generator_step, called when ranks were driven,
 * does it instead, and so do the host's calls.
 *
 * Invariants
 * - Everything below `lock` (asks.h, sequences, flights) is touched with it held.
 * - Callbacks run without it, but only on a thread that tells (opi_generator_tell), and one tells
 * at a time: it alone ends passes and turns. Cancels, releases and deadlines that come meanwhile
 * are noted, and done before it stops telling (opi_generator_grant). Other calls open sequences,
 *   begin turns of idle ones, fork and look, whatever is being told.
 * - Each replica has a runner, sequences, pages and a thread of its own; a sequence keeps its
 *   replica, and so do its forks.
 * - A runner is called by one thread at a time: by its replica's, without the lock while it waits,
 *   or with the lock held if the host drives.
 * - Passes of a replica end in the order in which they began, also those that the runner refused to
 *   begin.
 * - Nothing is allocated after opi_generator_open, but for the text of samplings. */
#ifndef OPI_GENERATE_SEQUENCES_H
#define OPI_GENERATE_SEQUENCES_H

#include <opipe/generate.h>

#include "runtime/generate/runner.h"

typedef struct opi_generator opi_generator;
/* A sequence of the host, behind its handle (OPI_HANDLE_SEQUENCE). */
typedef struct opi_host_sequence opi_host_sequence;

typedef struct opi_generator_params {
  const opipe_allocator *allocator;
  const opi_pass_runner *runners; /* [n_runners] one for each replica; copied */
  uint32_t n_runners;
  opi_pass_facts facts; /* of each of them */
  bool driven;          /* no thread of its own */
  uint64_t owner;       /* handle of the context */
} opi_generator_params;

/* Bytes of host memory that it keeps. Errors: INVALID, LIMIT. */
opipe_status opi_generator_bytes(const opi_generator_params *params, uint64_t *out_bytes,
                                 opipe_error *err);
/* The runner must stay until opi_generator_close. */
opipe_status opi_generator_open(const opi_generator_params *params, opi_generator **out,
                                opipe_error *err);
/* Ends all turns as cancelled, and lets calls inside return. Accepts NULL; may be repeated. */
void opi_generator_stop(opi_generator *generator);
/* After stop, once the runner's passes end by themselves: makes handles stale, waits for calls
 * inside, ends the thread. Accepts NULL. */
void opi_generator_close(opi_generator *generator);
/* driven: ends and begins passes as far as it can without waiting. Accepts NULL. */
void opi_generator_step(opi_generator *generator);
/* Is this thread inside a callback? Functions below but opi_sequence_wait may be called there, on
 * sequences of the callback's own generator; of another's they answer STATE. */
bool opi_generator_in_callback(void);

/* All fields but struct_size and bubble. */
opipe_status opi_generator_info(opi_generator *generator, opipe_generation_info *out,
                                opipe_error *err);

/* `params` are checked as structs, and whole. */
opipe_status opi_sequence_open(opi_generator *generator, const opipe_generate_params *params,
                               opipe_sequence **out_sequence, opipe_error *err);
opipe_status opi_sequence_append(opi_host_sequence *sequence, const opipe_generate_params *params,
                                 opipe_error *err);
/* ctx: of the other's callbacks. */
opipe_status opi_sequence_fork(opi_host_sequence *sequence, const uint64_t *seed, void *ctx,
                               opipe_sequence **out_sequence, opipe_error *err);
opipe_status opi_sequence_truncate(opi_host_sequence *sequence, uint32_t n_ids, opipe_error *err);
opipe_status opi_sequence_draft(opi_host_sequence *sequence, const uint32_t *ids, uint32_t n_ids,
                                opipe_error *err);
/* While a thread tells, the turn ends once it has. */
opipe_status opi_sequence_cancel(opi_host_sequence *sequence, opipe_error *err);
opipe_status opi_sequence_wait(opi_host_sequence *sequence, uint32_t n_tokens, uint64_t timeout_ns,
                               opipe_error *err);
opipe_status opi_sequence_describe(opi_host_sequence *sequence, opipe_sequence_info *out,
                                   opipe_error *err);
opipe_status opi_sequence_ids(opi_host_sequence *sequence, uint32_t first, uint32_t n_ids,
                              uint32_t *out, opipe_error *err);
/* The handle is being released: ends the turn, so that calls inside return. Waits for callbacks,
 * except inside one. */
void opi_sequence_leave(opi_host_sequence *sequence);

#endif /* OPI_GENERATE_SEQUENCES_H */
