/* The list as text: one line an instruction, with the names that logs, errors and traces use. */
#include "program/step.h"

static const char *const ins_kind_name[N_INS] = {[INS_KERNEL] = "kernel",
                                                 [INS_SUM] = "sum",
                                                 [INS_COPY] = "copy",
                                                 [INS_WAIT] = "wait",
                                                 [INS_RECV] = "recv",
                                                 [INS_SEND] = "send",
                                                 [INS_SENT] = "sent",
                                                 [INS_MIRROR_GRAD] = "mirror.gradient",
                                                 [INS_MIRROR_WEIGHT] = "mirror.weight",
                                                 [INS_DECIDE] = "decide",
                                                 [INS_ZERO] = "zero",
                                                 [INS_COUNT] = "count",
                                                 [INS_BATCH_COUNTS] = "batch_counts",
                                                 [INS_STATS] = "statistics",
                                                 [INS_FETCH] = "fetch",
                                                 [INS_CLEAR] = "clear",
                                                 [INS_REDUCE_PARAM] = "reduce_param",
                                                 [INS_REDUCE] = "reduce",
                                                 [INS_NORM] = "norm",
                                                 [INS_UPDATE] = "update",
                                                 [INS_GATHER] = "gather"};

const char *ins_name(const Step *s, const Ins *i, char *buf, size_t size) {
  if (i->kind == INS_KERNEL)
    snprintf(buf, size, "%s%s mb%d", s->chunk[i->chunk]->op[i->op].name, pass_suffix(i->pass), i->mb);
  else if (i->kind == INS_SUM)
    snprintf(buf, size, "%s/sum mb%d", s->buf[i->out[0]].label, i->mb);
  else if (i->kind == INS_COPY && i->mb >= 0)
    snprintf(buf, size, "copy.%s mb%d", s->buf[i->out[0]].label, i->mb);
  else if (i->kind == INS_COPY)
    snprintf(buf, size, "copy.%s", s->buf[i->out[0]].label);
  else if (i->group >= 0 && i->kind != INS_DECIDE)
    snprintf(buf, size, "%s.%s", ins_kind_name[i->kind], pgroup_name(i->group));
  else if (i->kind == INS_FETCH || i->kind == INS_CLEAR || i->kind == INS_REDUCE_PARAM)
    snprintf(buf, size, "%s.%s mb%d", ins_kind_name[i->kind], s->p->params->param[i->param].name, i->mb);
  else if (i->kind == INS_RECV || i->kind == INS_SEND)
    snprintf(buf, size, "%s.%s mb%d", ins_kind_name[i->kind], s->buf[i->kind == INS_RECV ? i->out[0] : i->in[0]].label, i->mb);
  else if (i->mb >= 0)
    snprintf(buf, size, "%s mb%d", ins_kind_name[i->kind], i->mb);
  else
    snprintf(buf, size, "%s", ins_kind_name[i->kind]);
  return buf;
}

static void print_buf(const Step *s, BufId b, char sign, FILE *f) {
  static const char region[N_REGION] = {'P', 'F', 'W', 'S', 'H'};
  if (b == NO_BUF) return;
  const Buf *x = &s->buf[b];
  fprintf(f, " %c%s%s@%c+%zu:%zu", sign, x->kind == BUF_GRAD ? "d:" : "", x->label, region[x->region], x->offset, x->bytes);
}

void step_print(const Step *s, FILE *f) {
  char name[128];
  for (int i = 0; i < s->n_ins; i++) {
    const Ins *x = &s->ins[i];
    fprintf(f, "%6d %-13s %-30s", i, ins_kind_name[x->kind], ins_name(s, x, name, sizeof name));
    for (int k = 0; k < MAX_IN; k++) print_buf(s, x->in[k], '<', f);
    for (int k = 0; k < MAX_OUT; k++) print_buf(s, x->d_out[k], '<', f);
    for (int k = 0; k < MAX_OUT; k++) print_buf(s, x->out[k], x->kind == INS_KERNEL && x->pass != PASS_FWD ? '<' : '>', f);
    for (int k = 0; k < MAX_IN; k++) print_buf(s, x->d_in[k], '>', f);
    print_buf(s, x->weight, '<', f);
    print_buf(s, x->accum, '+', f);
    print_buf(s, x->work, '~', f);
    fputc('\n', f);
  }
}

size_t buf_bytes(const Step *s, const Buf *b, const DealMb *mb, const int64_t *n_row) {
  if (b->kind != BUF_VALUE && b->kind != BUF_GRAD) return b->bytes;
  const Program *p = s->chunk[b->chunk];
  ValId plan = p->val[b->val].rows_from;
  int64_t rows = plan == NO_VAL ? 0 : n_row[b->mb * s->n_plan + s->plan_number[b->chunk][plan]];
  return (size_t)value_rows(p, b->val, &mb[b->mb], rows) * value_row_bytes(p, b->val, b->kind == BUF_GRAD);
}
