/* Offsets from lifetimes: largest first, each at the lowest place that is free for its whole life. Placed buffers are kept sorted by offset, so a search stops at
 * the first gap that fits (best case of Pisarchyk & Lee 2020, greedy by size). */
#include <stdlib.h>
#include <string.h>

#include "base/align.h"
#include "base/err.h"
#include "plan/plan.h"

static size_t line_up(size_t n) { return align_up(n, PLAN_LINE); }

static int larger_first(const void *a, const void *b) {
  const Buf *x = *(Buf *const *)a, *y = *(Buf *const *)b;
  if (x->bytes != y->bytes) return x->bytes < y->bytes ? 1 : -1;
  return x < y ? -1 : x > y;
}

/* Buffers that have their place, sorted by it. Most of them live at other times than the one in hand, so lifetimes lie apart and are looked through by blocks. */
enum { BLOCK = 32 };
typedef struct Placed {
  int n, *first, *last;
  Buf **buf;
} Placed;

static bool any_overlap(const int *first, const int *last, const Buf *b) {
  int any = 0;
  for (int i = 0; i < BLOCK; i++) any |= (first[i] <= b->last) & (last[i] >= b->first);
  return any;
}

static size_t lowest_gap(const Buf *b, const Placed *p) {
  size_t off = 0, size = line_up(b->bytes);
  for (int block = 0; block < p->n; block += BLOCK) {
    if (!any_overlap(p->first + block, p->last + block, b)) continue;
    for (int i = block; i < block + BLOCK && i < p->n; i++) {
      if (p->first[i] > b->last || p->last[i] < b->first) continue;
      const Buf *x = p->buf[i];
      if (x->offset >= off + size) return off;
      if (x->offset + line_up(x->bytes) > off) off = x->offset + line_up(x->bytes);
    }
  }
  return off;
}

/* After those at the same offset. */
static void insert_sorted(Placed *p, Buf *b) {
  int lo = 0, hi = p->n;
  while (lo < hi) {
    int mid = (lo + hi) / 2;
    if (p->buf[mid]->offset <= b->offset)
      lo = mid + 1;
    else
      hi = mid;
  }
  size_t after = (size_t)(p->n - lo);
  memmove(p->first + lo + 1, p->first + lo, after * sizeof *p->first);
  memmove(p->last + lo + 1, p->last + lo, after * sizeof *p->last);
  memmove(p->buf + lo + 1, p->buf + lo, after * sizeof *p->buf);
  p->first[lo] = b->first, p->last[lo] = b->last, p->buf[lo] = b;
  p->n++;
}

/* States lie in order of declaration: the same in every step. */
static size_t place_in_order(Buf **buf, int n) {
  size_t off = 0;
  for (int i = 0; i < n; i++) buf[i]->offset = off, off += line_up(buf[i]->bytes);
  return off;
}

static size_t place_by_size(Arena *a, Buf **buf, int n) {
  Placed p = {.first = ARENA_NEW(a, int, n + BLOCK), .last = ARENA_NEW(a, int, n + BLOCK), .buf = ARENA_NEW(a, Buf *, n + 1)};
  for (int i = 0; i < n + BLOCK; i++) p.last[i] = -1;
  size_t high = 0;
  qsort(buf, (size_t)n, sizeof *buf, larger_first);
  for (int i = 0; i < n; i++) {
    buf[i]->offset = lowest_gap(buf[i], &p);
    insert_sorted(&p, buf[i]);
    if (buf[i]->offset + line_up(buf[i]->bytes) > high) high = buf[i]->offset + line_up(buf[i]->bytes);
  }
  return high;
}

static size_t place_region(Arena *a, Step *s, Region r) {
  ArenaMark mark = arena_mark(a);
  Buf **buf = ARENA_NEW(a, Buf *, s->n_buf + 1);
  int n = 0;
  for (int b = 0; b < s->n_buf; b++)
    if (s->buf[b].region == r && s->buf[b].first >= 0) buf[n++] = &s->buf[b];
  size_t size = r == REGION_P || r == REGION_HOST ? place_in_order(buf, n) : place_by_size(a, buf, n);
  arena_release(a, mark);
  return size;
}

static void find_peak(MemPlan *m, Arena *a, const Step *s, int step, Region r) {
  ArenaMark mark = arena_mark(a);
  int64_t *delta = ARENA_NEW(a, int64_t, s->n_ins + 2), now = 0;
  for (int b = 0; b < s->n_buf; b++)
    if (s->buf[b].region == r && s->buf[b].first >= 0) {
      delta[s->buf[b].first] += (int64_t)line_up(s->buf[b].bytes);
      delta[s->buf[b].last + 1] -= (int64_t)line_up(s->buf[b].bytes);
    }
  for (int i = 0; i < s->n_ins; i++) {
    now += delta[i];
    if ((size_t)now > m->live[r]) m->live[r] = (size_t)now, m->peak_ins[r] = i, m->peak_step[r] = step;
  }
  arena_release(a, mark);
}

void plan_memory(MemPlan *m, Arena *a, Step *const *step, int n_step) {
  memset(m, 0, sizeof *m);
  for (int r = 0; r < N_REGION; r++)
    for (int i = 0; i < n_step; i++) {
      size_t size = place_region(a, step[i], r);
      if (size > m->bytes[r]) m->bytes[r] = size;
      find_peak(m, a, step[i], i, r);
    }
  for (int r = REGION_P; r <= REGION_S; r++) m->base[r] = m->device, m->device += m->bytes[r];
  m->host = m->bytes[REGION_HOST];
}

enum { SHOWN = 5 };
char *plan_largest_buffers(Arena *a, Step *const *step, int n_step) {
  const Buf *top[SHOWN] = {0};
  for (int i = 0; i < n_step; i++)
    for (int b = 0; b < step[i]->n_buf; b++) {
      const Buf *x = &step[i]->buf[b];
      if (x->region == REGION_HOST || x->first < 0) continue;
      bool seen = false;
      for (int k = 0; k < SHOWN; k++) seen |= top[k] && !strcmp(top[k]->label, x->label);
      int k = SHOWN;
      while (!seen && k > 0 && (!top[k - 1] || top[k - 1]->bytes < x->bytes)) k--;
      if (seen || k == SHOWN) continue;
      memmove(top + k + 1, top + k, (size_t)(SHOWN - k - 1) * sizeof *top);
      top[k] = x;
    }
  char *text = arena_printf(a, "%s", "");
  for (int k = 0; k < SHOWN && top[k]; k++)
    text = arena_printf(a, "%s%s%s %s", text, k ? ", " : "", top[k]->label, bytes_text(a, top[k]->bytes));
  return text;
}

bool plan_check_limits(const MemPlan *m, size_t need_device, size_t need_host, Arena *a, Step *const *step, int n_step, size_t device_limit,
                       size_t host_limit, Err *e) {
  if (device_limit && need_device > device_limit)
    return err_set(e, ERR_MEMORY,
                   "memory.device_limit: %zu bytes do not hold this model on this layout; the smallest that does: %zu. This rank needs %zu "
                   "(P %zu + F %zu + W %zu + S %zu). Largest buffers: %s",
                   device_limit, need_device, m->device, m->bytes[REGION_P], m->bytes[REGION_F], m->bytes[REGION_W], m->bytes[REGION_S],
                   plan_largest_buffers(a, step, n_step));
  if (host_limit && need_host > host_limit)
    return err_set(e, ERR_MEMORY, "memory.host_limit: %zu bytes are too few; the smallest that does: %zu", host_limit, need_host);
  return true;
}

/* ---- touched lines -------------------------------------------------------------------------------------------------------------------- */
Touched touched_new(Arena *a) { return (Touched){.a = a}; }

static int by_place(const void *a, const void *b) {
  const LineSpan *x = a, *y = b;
  return x->from < y->from ? -1 : x->from > y->from;
}
/* In place: sorted, overlaps joined. Returns how many are left. */
static int join_spans(LineSpan *x, int n) {
  int k = 0;
  qsort(x, (size_t)n, sizeof *x, by_place);
  for (int i = 0; i < n; i++) {
    if (k && x[i].from <= x[k - 1].end)
      x[k - 1].end = x[i].end > x[k - 1].end ? x[i].end : x[k - 1].end;
    else
      x[k++] = x[i];
  }
  return k;
}

void plan_touch(const Step *s, const DealMb *mb, const int64_t *n_row, Touched *t) {
  LineSpan *span[N_REGION];
  for (int r = 0; r < N_REGION; r++) {
    span[r] = ARENA_NEW(t->a, LineSpan, t->n[r] + s->n_buf);
    if (t->n[r]) memcpy(span[r], t->span[r], (size_t)t->n[r] * sizeof *span[r]);
  }
  for (int i = 0; i < s->n_buf; i++) {
    const Buf *b = &s->buf[i];
    size_t n = b->first < 0 ? 0 : buf_bytes(s, b, mb, n_row);
    if (n) span[b->region][t->n[b->region]++] = (LineSpan){b->offset, b->offset + line_up(n)};
  }
  for (int r = 0; r < N_REGION; r++) t->n[r] = join_spans(span[r], t->n[r]), t->span[r] = span[r];
}

size_t touched_bytes(const Touched *t, Region r) {
  size_t n = 0;
  for (int i = 0; i < t->n[r]; i++) n += t->span[r][i].end - t->span[r][i].from;
  return n;
}
