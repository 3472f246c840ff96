/* SPDX-License-Identifier: Apache-2.0 */
/* Tokens, proofs and seals, over libsodium's crypto_auth. */
#include "runtime/launch/token.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

static const uint8_t magic[2] = {'o', 'P'};
enum { ROLE_OTHER = 1, LABEL_ROOM = 24 };
enum { RECORD_MOST = OPI_RECORD_BEFORE + OPI_FRAME_MOST + OPI_RECORD_AFTER };
enum { LENGTH_BYTES = OPI_RECORD_BEFORE - OPI_RECORD_UNSENT };

/* ---- libsodium ---- */

static struct {
  int (*init)(void);
  int (*auth)(unsigned char *out, const unsigned char *in, unsigned long long n,
              const unsigned char *key);
  int (*verify)(const unsigned char *mac, const unsigned char *in, unsigned long long n,
                const unsigned char *key);
  size_t (*key_bytes)(void), (*mac_bytes)(void);
  bool is_there;
} sodium;

static void find(void *library, const char *name, void *out_function) {
  void *found = dlsym(library, name);
  memcpy(out_function, &found, sizeof found);
}

static void open_sodium(void) {
  void *library = dlopen("libsodium.so.23", RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (library == NULL)
    library = dlopen("libsodium.so.26", RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (library == NULL)
    return;
  find(library, "sodium_init", &sodium.init);
  find(library, "crypto_auth", &sodium.auth);
  find(library, "crypto_auth_verify", &sodium.verify);
  find(library, "crypto_auth_keybytes", &sodium.key_bytes);
  find(library, "crypto_auth_bytes", &sodium.mac_bytes);
  sodium.is_there = sodium.init != NULL && sodium.auth != NULL && sodium.verify != NULL &&
                    sodium.key_bytes != NULL && sodium.mac_bytes != NULL && sodium.init() >= 0 &&
                    sodium.key_bytes() == OPI_KEY_BYTES && sodium.mac_bytes() == OPI_MAC_BYTES;
}

static opipe_status need_sodium(opipe_error *err) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  (void)pthread_once(&once, open_sodium);
  return sodium.is_there ? OPIPE_OK
                         : opi_fail(err, OPIPE_E_UNSUPPORTED,
                                    "a token is proven by libsodium, which is not there: "
                                    "apt-get install libsodium23");
}

/* ---- the token ---- */

static opipe_status make_key(const char *text, size_t n, const char *source, opi_token *out,
                             opipe_error *err) {
  static const uint8_t salt[OPI_KEY_BYTES] = "onnx-pipe: the token of a job 1";
  if (n < OPI_TOKEN_LEAST || n > OPI_TOKEN_MOST) {
    return opi_fail(err, OPIPE_E_INVALID, "the token of %s has %zu bytes, %d to %d are allowed",
                    source, n, OPI_TOKEN_LEAST, OPI_TOKEN_MOST);
  }
  OPI_TRY(need_sodium(err));
  (void)sodium.auth(out->key, (const uint8_t *)text, n, salt);
  out->is_set = true;
  return OPIPE_OK;
}

static opipe_status read_file(const char *path, opi_token *out, opipe_error *err) {
  char text[OPI_TOKEN_MOST + 3], line[OPI_LINE_ROOM];
  size_t n = 0;
  ssize_t got = 0;
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0)
    return opi_fail_errno(err, errno, "ONNX_PIPE_TOKEN_FILE %s", opi_text_line(line, path));
  while (n < sizeof text && (got = read(fd, text + n, sizeof text - n)) > 0)
    n += (size_t)got;
  const int failed = errno;
  (void)close(fd);
  if (got < 0)
    return opi_fail_errno(err, failed, "ONNX_PIPE_TOKEN_FILE %s", opi_text_line(line, path));
  while (n > 0 && (text[n - 1] == '\n' || text[n - 1] == '\r'))
    --n;
  const opipe_status status = make_key(text, n, "ONNX_PIPE_TOKEN_FILE", out, err);
  explicit_bzero(text, sizeof text);
  return status;
}

opipe_status opi_token_find(const opi_variables *v, const char *given, opi_token *out,
                            opipe_error *err) {
  const char *text = v->look(v->ctx, "ONNX_PIPE_TOKEN");
  const char *file = v->look(v->ctx, "ONNX_PIPE_TOKEN_FILE");
  memset(out, 0, sizeof *out);
  if (given != NULL)
    return make_key(given, strlen(given), "team_open", out, err);
  if (text != NULL && text[0] != '\0' && file != NULL && file[0] != '\0') {
    return opi_fail(err, OPIPE_E_INVALID,
                    "ONNX_PIPE_TOKEN and ONNX_PIPE_TOKEN_FILE are both set: one token is needed");
  }
  if (text != NULL && text[0] != '\0')
    return make_key(text, strlen(text), "ONNX_PIPE_TOKEN", out, err);
  return file != NULL && file[0] != '\0' ? read_file(file, out, err) : OPIPE_OK;
}

/* ---- proofs ---- */

/* Under every MAC of a connection: whose it is, and what both have said, without MACs. */
typedef struct opi_transcript {
  char label[LABEL_ROOM];
  opi_greeting greeting;
  uint8_t proof[offsetof(opi_token_proof, mac)];
} opi_transcript;

static opi_transcript transcript_of(const char *label, const opi_greeting *greeting,
                                    const opi_token_proof *proof) {
  opi_transcript t = {.greeting = *greeting};
  (void)snprintf(t.label, sizeof t.label, "%s", label);
  memcpy(t.proof, proof, sizeof t.proof);
  return t;
}

static void authenticate(const opi_token *token, const char *label, const opi_greeting *greeting,
                         const opi_token_proof *proof, uint8_t out[OPI_MAC_BYTES]) {
  const opi_transcript t = transcript_of(label, greeting, proof);
  (void)sodium.auth(out, (const uint8_t *)&t, sizeof t, token->key);
}

static bool is_proven(const opi_token *token, const char *label, const opi_greeting *greeting,
                      const opi_token_proof *proof, const uint8_t mac[OPI_MAC_BYTES]) {
  const opi_transcript t = transcript_of(label, greeting, proof);
  return sodium.verify(mac, (const uint8_t *)&t, sizeof t, token->key) == 0;
}

static opipe_status draw(uint8_t out[OPI_NONCE_BYTES], opipe_error *err) {
  return getrandom(out, OPI_NONCE_BYTES, 0) == OPI_NONCE_BYTES
             ? OPIPE_OK
             : opi_fail_errno(err, errno, "random bytes cannot be drawn");
}

static opipe_status check_head(const uint8_t head[2], uint8_t version, opipe_error *err) {
  if (memcmp(head, magic, sizeof magic) != 0)
    return opi_fail(err, OPIPE_E_INVALID, "the peer does not speak this channel's language");
  return version == OPI_CHANNEL_VERSION
             ? OPIPE_OK
             : opi_fail(err, OPIPE_E_ABI,
                        "the peer speaks version %u of the channel, this process version %u: both "
                        "need the same library",
                        version, OPI_CHANNEL_VERSION);
}

opipe_status opi_greeting_make(const opi_token *token, opi_greeting *out, opipe_error *err) {
  memset(out, 0, sizeof *out);
  memcpy(out->magic, magic, sizeof magic);
  out->version = OPI_CHANNEL_VERSION;
  out->asks = token->is_set ? 1 : 0;
  return draw(out->nonce, err);
}

opipe_status opi_greeting_check(const opi_greeting *g, opipe_error *err) {
  OPI_TRY(check_head(g->magic, g->version, err));
  return g->asks <= 1 && g->reserved == 0
             ? OPIPE_OK
             : opi_fail(err, OPIPE_E_INVALID, "the peer's greeting has unknown flags");
}

opipe_status opi_token_prove(const opi_token *token, const opi_greeting *greeting,
                             opi_token_proof *io, opipe_error *err) {
  memcpy(io->magic, magic, sizeof magic);
  io->version = OPI_CHANNEL_VERSION;
  io->role = ROLE_OTHER;
  OPI_TRY(draw(io->nonce, err));
  authenticate(token, "proof of another", greeting, io, io->mac);
  return OPIPE_OK;
}

opipe_status opi_token_check(const opi_token *token, const opi_greeting *greeting,
                             const opi_token_proof *proof, opi_verdict *out, opipe_error *err) {
  memset(out, 0, sizeof *out);
  memcpy(out->magic, magic, sizeof magic);
  out->version = OPI_CHANNEL_VERSION;
  out->refused = 1;
  OPI_TRY(check_head(proof->magic, proof->version, err));
  if (proof->role != ROLE_OTHER ||
      !is_proven(token, "proof of another", greeting, proof, proof->mac))
    return opi_fail(err, OPIPE_E_INVALID, "it does not prove the token");
  out->refused = 0;
  authenticate(token, "proof of process 0", greeting, proof, out->mac);
  return OPIPE_OK;
}

opipe_status opi_token_judge(const opi_token *token, const opi_greeting *greeting,
                             const opi_token_proof *proof, const opi_verdict *verdict,
                             opipe_error *err) {
  OPI_TRY(check_head(verdict->magic, verdict->version, err));
  if (verdict->refused != 0) {
    return opi_fail(err, OPIPE_E_INVALID,
                    "it refuses the token of this process: all processes need the same "
                    "ONNX_PIPE_TOKEN, or file of ONNX_PIPE_TOKEN_FILE");
  }
  return is_proven(token, "proof of process 0", greeting, proof, verdict->mac)
             ? OPIPE_OK
             : opi_fail(err, OPIPE_E_INVALID, "it does not prove the token");
}

/* ---- records ---- */

opipe_status opi_seal_init(opi_seal *seal, const opipe_allocator *allocator, const opi_token *token,
                           const opi_greeting *greeting, const opi_token_proof *proof, bool is_root,
                           opipe_error *err) {
  memset(seal, 0, sizeof *seal);
  seal->record = opi_alloc(allocator, RECORD_MOST);
  if (seal->record == NULL)
    return opi_fail_nomem(err, RECORD_MOST, "a connection");
  seal->allocator = allocator;
  uint8_t *to_0 = is_root ? seal->receive_key : seal->send_key;
  uint8_t *from_0 = is_root ? seal->send_key : seal->receive_key;
  authenticate(token, "records to process 0", greeting, proof, to_0);
  authenticate(token, "records of process 0", greeting, proof, from_0);
  return OPIPE_OK;
}

void opi_seal_release(opi_seal *seal) {
  if (seal->allocator == NULL)
    return;
  opi_free(seal->allocator, seal->record, RECORD_MOST);
  explicit_bzero(seal, sizeof *seal);
}

void opi_seal_write(opi_seal *seal, uint8_t *room, uint32_t n_bytes) {
  memcpy(room, &seal->n_sent, sizeof seal->n_sent);
  memcpy(room + OPI_RECORD_UNSENT, &n_bytes, sizeof n_bytes);
  (void)sodium.auth(room + OPI_RECORD_BEFORE + n_bytes, room, OPI_RECORD_BEFORE + n_bytes,
                    seal->send_key);
  ++seal->n_sent;
}

/* A whole record is there. */
static opipe_status take_record(opi_seal *seal, uint32_t n_bytes, opi_sealed_fn each, void *ctx,
                                opipe_error *err) {
  const uint32_t n = OPI_RECORD_BEFORE + n_bytes;
  memcpy(seal->record, &seal->n_received, sizeof seal->n_received);
  if (sodium.verify(seal->record + n, seal->record, n, seal->receive_key) != 0) {
    return opi_fail(err, OPIPE_E_INVALID,
                    "record %llu, of %u bytes, is not what the other end has sent",
                    (unsigned long long)seal->n_received, n_bytes);
  }
  ++seal->n_received;
  seal->n = 0;
  return each(ctx, seal->record + OPI_RECORD_BEFORE, n_bytes, err);
}

opipe_status opi_seal_take(opi_seal *seal, const uint8_t *data, size_t n, opi_sealed_fn each,
                           void *ctx, opipe_error *err) {
  while (n > 0) {
    uint32_t n_bytes = 0, want = LENGTH_BYTES;
    if (seal->n >= LENGTH_BYTES) {
      memcpy(&n_bytes, seal->record + OPI_RECORD_UNSENT, sizeof n_bytes);
      want += n_bytes + OPI_RECORD_AFTER;
    }
    const size_t part = n < want - seal->n ? n : want - seal->n;
    memcpy(seal->record + OPI_RECORD_UNSENT + seal->n, data, part);
    seal->n += (uint32_t)part;
    data += part;
    n -= part;
    if (seal->n < want)
      continue;
    memcpy(&n_bytes, seal->record + OPI_RECORD_UNSENT, sizeof n_bytes);
    if (n_bytes == 0 || n_bytes > OPI_FRAME_MOST) {
      return opi_fail(err, OPIPE_E_INVALID, "a record of %u bytes, 1 to %d are allowed", n_bytes,
                      OPI_FRAME_MOST);
    }
    if (want > LENGTH_BYTES)
      OPI_TRY(take_record(seal, n_bytes, each, ctx, err));
  }
  return OPIPE_OK;
}
