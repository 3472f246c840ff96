/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes that come to the channel, judged as the fuzzer judges them (tests/fuzz/fuzz_channel.c):
 * some thousand inputs drawn from a seed, by unix sockets and by TCP, of noise and of frames that
 * were changed. ctest: timeout=60 */
#include "tests/fuzz/fuzz_channel.c"
#include "tests/support/support.h"

enum { INPUTS = 3000, ROOM = 2048, BY_TCP = 0x80 };

static uint32_t draw(opi_test_random *random) {
  return (uint32_t)(opi_test_next(random) >> 32);
}

static size_t noise(opi_test_random *random, uint8_t *out, size_t room) {
  const size_t n = draw(random) % room;
  for (size_t i = 0; i < n; ++i)
    out[i] = (uint8_t)draw(random);
  return n;
}

/* Whole frames of every kind, of which a few bytes are then changed, or the end is cut off. */
static size_t frames(opi_test_random *random, uint8_t *out, size_t room) {
  uint8_t body[256], frame[OPI_FRAME_MOST];
  size_t n = 0;
  for (uint32_t k = 1 + draw(random) % 4; k > 0; --k) {
    const size_t n_body = noise(random, body, sizeof body);
    uint64_t at = 0;
    const uint32_t n_frame = opi_frame_write(frame, 1 + draw(random) % (OPI_FRAME_KINDS - 1),
                                             draw(random), body, n_body, &at);
    if (n + n_frame > room)
      break;
    memcpy(out + n, frame, n_frame);
    n += n_frame;
  }
  for (uint32_t k = draw(random) % 3; k > 0 && n > 0; --k)
    out[draw(random) % n] = (uint8_t)draw(random);
  return draw(random) % 4 == 0 ? n - draw(random) % (uint32_t)(n + 1) : n;
}

static void attack(uint64_t seed, uint8_t way,
                   size_t (*make)(opi_test_random *, uint8_t *, size_t)) {
  uint8_t data[ROOM];
  opi_test_random random = {seed};
  for (uint32_t i = 0; i < INPUTS; ++i) {
    data[0] = (uint8_t)(way | (draw(&random) & 0x7f));
    const size_t n = make(&random, data + 1, ROOM - 1);
    OPI_ASSERT_INT(LLVMFuzzerTestOneInput(data, n + 1), 0);
  }
}

static void test_noise(void) {
  attack(1, 0, noise);
  attack(2, BY_TCP, noise);
}

static void test_changed_frames(void) {
  attack(3, 0, frames);
  attack(4, BY_TCP, frames);
}

OPI_TEST_MAIN("hostile", OPI_TEST(test_noise), OPI_TEST(test_changed_frames))
