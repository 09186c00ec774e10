/* The sampler: no token lost, every epoch a permutation, resumable anywhere; validation sees every token once. */
#include "data/data.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX = 4096 };

typedef struct Box {
  Arena arena;
  char path[64];
  TokenFile file;
} Box;

/* A file of n tokens, token t = t + 1. */
static void box_open(Box *b, int n) {
  uint16_t token[MAX];
  for (int t = 0; t < n; t++) token[t] = (uint16_t)(t + 1);
  arena_open(&b->arena, "test", 1 << 20);
  snprintf(b->path, sizeof b->path, "/tmp/etalon-sampler-XXXXXX");
  int fd = mkstemp(b->path);
  assert_true(fd >= 0);
  assert_int_equal(write(fd, token, (size_t)n * 2), n * 2);
  close(fd);
  Err e = {0};
  if (!token_file_open(&b->file, &b->arena, b->path, TOK_U16, MAX + 1, &e)) fail_msg("%s", e.text);
}

static void box_close(Box *b) {
  token_file_close(&b->file);
  unlink(b->path);
  arena_close(&b->arena);
}

static Sampler sampler(const Box *b, int64_t seq, uint64_t seed, bool shuffle) {
  Sampler s;
  Err e = {0};
  if (!sampler_open(&s, &b->file, seq, seed, shuffle, &e)) fail_msg("%s", e.text);
  return s;
}

static void every_full_sequence_is_used(void **state) {
  (void)state;
  static const struct {
    int n_token, seq, n_sample;
  } cases[] = {{100, 8, 12}, {97, 8, 12}, {96, 8, 11}, {9, 8, 1}, {16, 8, 1}, {17, 8, 2}, {2, 1, 1}, {3, 1, 2}};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    Box b;
    box_open(&b, cases[i].n_token);
    Sampler s = sampler(&b, cases[i].seq, 1, false);
    assert_int_equal(s.n_sample, cases[i].n_sample);
    box_close(&b);
  }
}

static void labels_are_the_next_tokens(void **state) {
  (void)state;
  Box b;
  box_open(&b, 100);
  Sampler s = sampler(&b, 8, 1, false);
  int32_t token[8], label[8];
  Err e = {0};
  for (int64_t i = 0; i < 30; i++) {
    assert_true(sampler_fetch(&s, i, token, label, &e));
    for (int t = 0; t < 8; t++) {
      assert_int_equal(token[t], i % 12 * 8 + t + 1);
      assert_int_equal(label[t], token[t] + 1);
    }
  }
  s = sampler(&b, 8, 1, true);
  for (int64_t i = 0; i < 30; i++) {
    assert_true(sampler_fetch(&s, i, token, label, &e));
    for (int t = 0; t < 8; t++) {
      assert_int_equal(token[t], sampler_sequence(&s, i) * 8 + t + 1);
      assert_int_equal(label[t], token[t] + 1);
    }
  }
  box_close(&b);
}

static void too_few_tokens_are_refused(void **state) {
  (void)state;
  for (int n = 1; n <= 9; n++) {
    Box b;
    box_open(&b, n);
    Sampler s;
    Err e = {0};
    assert_int_equal(sampler_open(&s, &b.file, 8, 1, true, &e), n == 9);
    assert_int_equal(e.code, n == 9 ? ERR_NONE : ERR_DATA);
    if (n < 9 && !strstr(e.text, "data.seq_length 8 needs 9")) fail_msg("%s", e.text);
    box_close(&b);
  }
}

static void epochs_are_permutations(void **state) {
  (void)state;
  Box b;
  box_open(&b, 1001);
  for (int64_t seq = 1; seq <= 1000; seq = seq * 3 + 1) {
    Sampler s = sampler(&b, seq, 5, true);
    int differ = 0;
    for (int64_t epoch = 0; epoch < 4; epoch++) {
      bool seen[MAX] = {false};
      for (int64_t i = 0; i < s.n_sample; i++) {
        int64_t q = sampler_sequence(&s, epoch * s.n_sample + i);
        assert_in_range(q, 0, s.n_sample - 1);
        assert_false(seen[q]);
        seen[q] = true;
        differ += q != sampler_sequence(&s, i);
      }
    }
    if (s.n_sample > 20) assert_true(differ > s.n_sample); /* another order each epoch */
  }
  box_close(&b);
}

static void order_depends_on_the_seed(void **state) {
  (void)state;
  Box b;
  box_open(&b, 1001);
  Sampler s = sampler(&b, 4, 5, true), again = sampler(&b, 4, 5, true), other = sampler(&b, 4, 6, true);
  int differ = 0;
  for (int64_t i = 0; i < s.n_sample; i++) {
    assert_int_equal(sampler_sequence(&s, i), sampler_sequence(&again, i));
    differ += sampler_sequence(&s, i) != sampler_sequence(&other, i);
  }
  assert_true(differ > s.n_sample / 2);
  box_close(&b);
}

/* Resume: what sample i is depends on nothing that was asked before. */
static void resumes_anywhere(void **state) {
  (void)state;
  Box b;
  box_open(&b, 500);
  Sampler run = sampler(&b, 7, 9, true);
  int32_t token[7], label[7], again[7], label_again[7];
  Err e = {0};
  for (int64_t start = 0; start < 3 * run.n_sample; start += 13) {
    Sampler resumed = sampler(&b, 7, 9, true);
    for (int64_t i = 3 * run.n_sample; i >= start; i -= 5) { /* backwards, with gaps */
      assert_true(sampler_fetch(&run, i, token, label, &e));
      assert_true(sampler_fetch(&resumed, i, again, label_again, &e));
      assert_memory_equal(token, again, sizeof token);
      assert_memory_equal(label, label_again, sizeof label);
    }
  }
  box_close(&b);
}

static void validation_sees_every_token_once(void **state) {
  (void)state;
  for (int n = 1; n < 40; n++)
    for (int64_t seq = 1; seq < 12; seq++) {
      Box b;
      box_open(&b, n);
      int64_t count = valid_count(&b.file, seq), labels = 0;
      assert_int_equal(count, (n - 1) / seq + ((n - 1) % seq != 0));
      for (int64_t i = 0; i < count; i++) {
        int32_t token[12], label[12];
        Err e = {0};
        assert_true(valid_fetch(&b.file, seq, i, token, label, &e));
        for (int64_t t = 0; t < seq; t++) {
          int64_t at = i * seq + t;
          bool there = at < n - 1;
          assert_int_equal(token[t], there ? at + 1 : 0);
          assert_int_equal(label[t], there ? at + 2 : LABEL_IGNORED);
          labels += label[t] != LABEL_IGNORED;
        }
      }
      assert_int_equal(labels, n - 1);
      box_close(&b);
    }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_full_sequence_is_used),      cmocka_unit_test(labels_are_the_next_tokens),
      cmocka_unit_test(too_few_tokens_are_refused),       cmocka_unit_test(epochs_are_permutations),
      cmocka_unit_test(order_depends_on_the_seed),        cmocka_unit_test(resumes_anywhere),
      cmocka_unit_test(validation_sees_every_token_once),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
