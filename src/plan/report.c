/* What the plan says to people: flops, and memory by label at each region's fullest moment. */
#include <stdlib.h>
#include <string.h>

#include "base/align.h"
#include "plan/plan.h"

const char *region_name(Region r) {
  static const char *const name[N_REGION] = {"P parameters", "F floor", "W working set", "S stash", "host"};
  return name[r];
}

const char *bytes_text(Arena *a, size_t n) {
  static const char *const unit[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double x = (double)n;
  int u = 0;
  while (x >= 1024 && u < 4) x /= 1024, u++;
  return arena_printf(a, u ? "%.2f %s" : "%.0f %s", x, unit[u]);
}

/* What the ops say; attention counts all keys that a causal query sees in its window: with document masks, which are data, it sees fewer. */
FlopCount plan_flops(const Step *s, const DealMb *mb, const int64_t *n_row) {
  FlopCount f = {0};
  for (int i = 0; i < s->n_ins; i++) {
    const Ins *x = &s->ins[i];
    if (x->kind != INS_KERNEL) continue;
    const Program *p = s->chunk[x->chunk];
    const Op *op = &p->op[x->op];
    const OpDesc *d = &op_desc[op->kind];
    if (!d->flops) continue;
    double n = d->flops(p, op, x->pass, &mb[x->mb], x->guard >= 0 ? n_row[x->guard] : 0);
    if (x->pass == PASS_FWD)
      f.forward += n;
    else
      f.backward += n;
  }
  f.sum = f.forward + f.backward;
  return f;
}

typedef struct LabelSum {
  const char *label;
  size_t bytes;
  int n;
} LabelSum;

/* "L03.attn.q" counts under "attn.q". */
static const char *label_class(const Buf *b) {
  const char *l = b->label;
  return l[0] == 'L' && l[1] >= '0' && l[1] <= '9' && strchr(l, '.') ? strchr(l, '.') + 1 : l;
}

static int by_bytes(const void *a, const void *b) {
  const LabelSum *x = a, *y = b;
  return x->bytes < y->bytes ? 1 : x->bytes > y->bytes ? -1 : strcmp(x->label, y->label);
}

static int sum_labels(const Step *s, Region r, int ins, LabelSum *sum) {
  int n = 0;
  for (int b = 0; b < s->n_buf; b++) {
    const Buf *x = &s->buf[b];
    if (x->region != r || x->first < 0 || x->first > ins || x->last < ins || !x->bytes) continue;
    int k = 0;
    while (k < n && strcmp(sum[k].label, label_class(x))) k++;
    if (k == n) sum[n++] = (LabelSum){.label = label_class(x)};
    sum[k].bytes += align_up(x->bytes, PLAN_LINE);
    sum[k].n++;
  }
  qsort(sum, (size_t)n, sizeof *sum, by_bytes);
  return n;
}

void plan_report_memory(const MemPlan *m, Arena *a, Step *const *step, int n_step, FILE *f) {
  (void)n_step;
  fprintf(f, "device slab %zu bytes (%s), host %zu bytes (%s)\n", m->device, bytes_text(a, m->device), m->host, bytes_text(a, m->host));
  for (int r = 0; r < N_REGION; r++) {
    const Step *s = step[m->peak_step[r]];
    ArenaMark mark = arena_mark(a);
    LabelSum *sum = ARENA_NEW(a, LabelSum, s->n_buf + 1);
    char name[128] = "the whole step";
    if (r != REGION_P && r != REGION_HOST && m->bytes[r]) ins_name(s, &s->ins[m->peak_ins[r]], name, sizeof name);
    fprintf(f, "%-14s %14zu bytes  %s; fullest during %s\n", region_name(r), m->bytes[r], bytes_text(a, m->bytes[r]), name);
    int n = sum_labels(s, r, m->peak_ins[r], sum);
    for (int k = 0; k < n; k++) fprintf(f, "    %-24s %14zu  x%d\n", sum[k].label, sum[k].bytes, sum[k].n);
    if (m->bytes[r] > m->live[r]) fprintf(f, "    %-24s %14zu\n", "(gaps)", m->bytes[r] - m->live[r]);
    arena_release(a, mark);
  }
}
