/* Paint and poison. The slab is painted once; a line that no longer holds the paint was touched. In guard mode workspaces hold NaN when a call begins, and a buffer
 * holds NaN from its last use on, so that a kernel that reads what it should not shows in the loss. */
#include <string.h>

#include "exec/exec_state.h"

enum { PAINT = 0xA5, POISON = 0xFF /* NaN as f32, f64 and bf16, -1 as an index */, LINE = 64 };

void guard_paint(void *p, size_t n) { memset(p, PAINT, n); }

size_t guard_touched(const void *p, size_t n) {
  const unsigned char *b = p;
  size_t touched = 0;
  for (size_t i = 0; i < n; i += LINE) {
    bool same = true;
    for (size_t j = 0; j < LINE; j++) same &= b[i + j] == PAINT;
    touched += !same;
  }
  return touched * LINE;
}

void guard_index_dead(StepRun *r, Arena *a) {
  const Step *s = r->s;
  r->dead_first = ARENA_NEW(a, int, s->n_ins + 2);
  r->dead = ARENA_NEW(a, BufId, s->n_buf + 1);
  for (BufId b = 0; b < s->n_buf; b++)
    if (s->buf[b].first >= 0 && s->buf[b].last < s->n_ins) r->dead_first[s->buf[b].last + 1]++;
  for (int i = 0; i <= s->n_ins; i++) r->dead_first[i + 1] += r->dead_first[i];
  int *next = ARENA_NEW(a, int, s->n_ins + 2);
  memcpy(next, r->dead_first, (size_t)(s->n_ins + 2) * sizeof *next);
  for (BufId b = 0; b < s->n_buf; b++)
    if (s->buf[b].first >= 0 && s->buf[b].last < s->n_ins) r->dead[next[s->buf[b].last]++] = b;
}

void guard_before(Exec *x, StepRun *r, const Ins *i) {
  if (i->work != NO_BUF) memset(exec_ptr(x, r->s, i->work), POISON, r->s->buf[i->work].bytes);
}

void guard_after(Exec *x, StepRun *r, int i) {
  for (int k = r->dead_first[i]; k < r->dead_first[i + 1]; k++) {
    const Buf *b = &r->s->buf[r->dead[k]];
    memset(exec_ptr(x, r->s, r->dead[k]), POISON, buf_bytes(r->s, b, r->mb, r->n_row));
  }
}
