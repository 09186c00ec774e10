/* Wishes of a test that runs on several ranks: a rank that sees something wrong tells the others before the case ends, so that nobody waits for it. Both take
 * any fixture with `World *w` and `Err bad`. To be included after cmocka.h. */
#ifndef ETALON_TEST_COLLECTIVE_H
#define ETALON_TEST_COLLECTIVE_H
#include "base/err.h"
#include "comm/comm.h"

/* Keeps the first complaint; SETTLE makes it everybody's. The message is optional. */
#define WANT(f, cond, ...)                                                                                                                 \
  do {                                                                                                                                     \
    if (!(cond) && (f)->bad.code == ERR_NONE) {                                                                                            \
      err_set(&(f)->bad, ERR_MISMATCH, " " __VA_ARGS__);                                                                                   \
      err_wrap(&(f)->bad, "rank %d, line %d: %s", world_rank((f)->w), __LINE__, #cond);                                                    \
    }                                                                                                                                      \
  } while (0)
#define SETTLE(f) settle_complaint((f)->w, &(f)->bad)

static void settle_complaint(World *w, Err *bad) {
  if (world_agree(w, bad)) return;
  Err all = *bad;
  *bad = (Err){0};
  fail_msg("%s", all.text);
}
#endif
