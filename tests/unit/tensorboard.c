/* TensorBoard's records: bytes known from outside. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/crc.h"
#include "train/tensorboard.h"

static void is_hex(const uint8_t *p, size_t n, const char *hex) {
  char got[2 * TENSORBOARD_RECORD + 1];
  for (size_t i = 0; i < n; i++) snprintf(got + 2 * i, 3, "%02x", p[i]);
  assert_string_equal(got, hex);
}

/* The check value of the CRC catalogue, and two vectors of RFC 3720. */
static void crc_vectors(void **state) {
  (void)state;
  uint8_t zeros[32] = {0}, up[32];
  for (int i = 0; i < 32; i++) up[i] = (uint8_t)i;
  assert_true(crc32c("123456789", 9) == 0xe3069283u);
  assert_true(crc32c(zeros, 32) == 0x8a9136aau);
  assert_true(crc32c(up, 32) == 0x46dd794eu);
  assert_true(crc32c("", 0) == 0);
}

static void known_records(void **state) {
  (void)state;
  uint8_t r[TENSORBOARD_RECORD];
  is_hex(r, tensorboard_version(r, 1.0), "1800000000000000a37f4b2209000000000000f03f1a0d627261696e2e4576656e743a3286bf577a");
  is_hex(r, tensorboard_scalar(r, 1.0, 7, "loss", 2.5f),
         "1a00000000000000129bd82d09000000000000f03f10072a0d0a0b0a046c6f7373150000204087ccc43d");
}

/* Steps above 127 take more bytes; a tag that is too long is cut, and lengths stay right. */
static void sizes(void **state) {
  (void)state;
  uint8_t r[TENSORBOARD_RECORD];
  char tag[1000];
  memset(tag, 'x', sizeof tag - 1);
  tag[sizeof tag - 1] = 0;
  assert_int_equal(tensorboard_scalar(r, 0, 127, "t", 0), tensorboard_scalar(r, 0, 0, "t", 0));
  assert_int_equal(tensorboard_scalar(r, 0, 128, "t", 0), tensorboard_scalar(r, 0, 0, "t", 0) + 1);
  size_t n = tensorboard_scalar(r, 1e9, INT64_MAX, tag, 1);
  assert_true(n <= TENSORBOARD_RECORD);
  assert_int_equal(r[0] | r[1] << 8, n - 16);
}

/* A disk that is full is said once. */
static void full(void **state) {
  (void)state;
  TensorBoard t = {fopen("/dev/full", "wb")};
  tensorboard_put(&t, 1, "loss", 1);
  assert_false(tensorboard_flush(&t));
  assert_int_equal(errno, ENOSPC);
  tensorboard_put(&t, 2, "loss", 1);
  assert_true(tensorboard_flush(&t));
  tensorboard_close(&t);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(crc_vectors), cmocka_unit_test(known_records), cmocka_unit_test(sizes),
                                     cmocka_unit_test(full)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
