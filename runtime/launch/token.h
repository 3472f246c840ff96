/* SPDX-License-Identifier: Apache-2.0 */
/* The proof that both ends of a connection have the job's token, and the seal on what they say
 * afterwards; for connections that other users or machines can reach. Nothing is encrypted.
 *
 *   process 0   greeting  nonce, does it ask for a token  ──►  the other
 *               answer    nonce, rank, size, versions, job, MAC  ◄──
 *               verdict   MAC, or a refusal  ──►
 *   then        record    n_bytes, bytes, MAC   in both directions
 *
 * Every MAC is libsodium's crypto_auth (HMAC-SHA512-256) under a key made of the token. Answer and
 * verdict are authenticated with the role of the sender and everything that both have said. Records
 * have a key for each connection and direction, and a counter under the MAC: one that is wrong,
 * repeated, left out or sent back is refused. libsodium is opened at run time.
 */
#ifndef OPI_TOKEN_H
#define OPI_TOKEN_H

#include "runtime/launch/frame.h"
#include "runtime/launch/launchers.h"

enum { OPI_KEY_BYTES = 32, OPI_MAC_BYTES = 32, OPI_NONCE_BYTES = 32 };
enum { OPI_TOKEN_LEAST = 16, OPI_TOKEN_MOST = 1024 }; /* bytes of a token */

typedef struct opi_token {
  uint8_t key[OPI_KEY_BYTES];
  bool is_set;
} opi_token;

typedef struct opi_greeting {
  uint8_t magic[2], version, asks; /* asks: 1, for a token */
  uint32_t reserved;
  uint8_t nonce[OPI_NONCE_BYTES];
} opi_greeting;

typedef struct opi_token_proof {
  uint8_t magic[2], version, role;
  uint32_t rank, size, abi_major, abi_minor;
  uint8_t nonce[OPI_NONCE_BYTES];
  char release[16], job[OPI_JOB_ROOM];
  uint8_t mac[OPI_MAC_BYTES];
} opi_token_proof;

typedef struct opi_verdict {
  uint8_t magic[2], version, refused; /* refused: 1, the proof was wrong */
  uint8_t mac[OPI_MAC_BYTES];
} opi_verdict;

/* Bytes that a record adds before and after n bytes; the first OPI_RECORD_UNSENT do not travel. */
enum { OPI_RECORD_UNSENT = 8, OPI_RECORD_BEFORE = 12, OPI_RECORD_AFTER = OPI_MAC_BYTES };

typedef struct opi_seal {
  const opipe_allocator *allocator; /* NULL: the connection is not sealed */
  uint8_t send_key[OPI_KEY_BYTES], receive_key[OPI_KEY_BYTES];
  uint64_t n_sent, n_received; /* records */
  uint8_t *record;             /* the one that is coming in */
  uint32_t n;                  /* bytes of it, after the first OPI_RECORD_UNSENT */
} opi_seal;

/* The token of ONNX_PIPE_TOKEN, or in the file of ONNX_PIPE_TOKEN_FILE without its last line end.
 * given: a host's, which comes first; NULL: none. *out is not set if there is none. Errors:
 * INVALID: too short or too long, two tokens; IO; UNSUPPORTED: libsodium is not there. */
opipe_status opi_token_find(const opi_variables *variables, const char *given, opi_token *out,
                            opipe_error *err);

opipe_status opi_greeting_make(const opi_token *token, opi_greeting *out, opipe_error *err);
/* Is it one? Errors: INVALID; ABI, another version of the channel. */
opipe_status opi_greeting_check(const opi_greeting *greeting, opipe_error *err);
/* The other end's proof; its MAC is written by the call. */
opipe_status opi_token_prove(const opi_token *token, const opi_greeting *greeting,
                             opi_token_proof *io, opipe_error *err);
/* Process 0's: checks a proof and writes the verdict, a refusal too. Errors: INVALID, ABI. */
opipe_status opi_token_check(const opi_token *token, const opi_greeting *greeting,
                             const opi_token_proof *proof, opi_verdict *out, opipe_error *err);
opipe_status opi_token_judge(const opi_token *token, const opi_greeting *greeting,
                             const opi_token_proof *proof, const opi_verdict *verdict,
                             opipe_error *err);

/* The seal of one end; is_root: process 0's. */
opipe_status opi_seal_init(opi_seal *seal, const opipe_allocator *allocator, const opi_token *token,
                           const opi_greeting *greeting, const opi_token_proof *proof, bool is_root,
                           opipe_error *err);
void opi_seal_release(opi_seal *seal);
/* room: OPI_RECORD_BEFORE bytes, n_bytes of the record, room for OPI_RECORD_AFTER. */
void opi_seal_write(opi_seal *seal, uint8_t *room, uint32_t n_bytes);
/* Passes on the bytes of every record that ends in `data`. Errors: INVALID, a record that is not
 * the other end's next; those of `each`. Nothing can be read after an error. */
typedef opipe_status (*opi_sealed_fn)(void *ctx, const uint8_t *bytes, size_t n, opipe_error *err);
opipe_status opi_seal_take(opi_seal *seal, const uint8_t *data, size_t n, opi_sealed_fn each,
                           void *ctx, opipe_error *err);

#endif /* OPI_TOKEN_H */
