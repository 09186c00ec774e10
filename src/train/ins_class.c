#include "train/ins_class.h"

#include <string.h>

const char *work_name(WorkKind k) {
  static const char *const name[N_WORK] = {"compute", "communication", "copies", "optimizer"};
  return name[k];
}

WorkKind ins_work(const Step *s, const Ins *i) {
  static const WorkKind kind[N_INS] = {
      [INS_SUM] = WORK_COMPUTE,        [INS_COPY] = WORK_COPY,         [INS_WAIT] = WORK_COPY,        [INS_RECV] = WORK_COMM,
      [INS_SEND] = WORK_COMM,          [INS_SENT] = WORK_COMM,         [INS_DECIDE] = WORK_COMPUTE,   [INS_ZERO] = WORK_OPTIMIZER,
      [INS_COUNT] = WORK_COMM,         [INS_BATCH_COUNTS] = WORK_COMM, [INS_STATS] = WORK_COMM,       [INS_MIRROR_GRAD] = WORK_COMM,
      [INS_REDUCE] = WORK_COMM,        [INS_NORM] = WORK_OPTIMIZER,    [INS_UPDATE] = WORK_OPTIMIZER, [INS_GATHER] = WORK_COMM,
      [INS_MIRROR_WEIGHT] = WORK_COMM, [INS_FETCH] = WORK_COMM,        [INS_CLEAR] = WORK_COMPUTE,    [INS_REDUCE_PARAM] = WORK_COMM,
  };
  if (i->kind != INS_KERNEL) return kind[i->kind];
  return op_desc[s->chunk[i->chunk]->op[i->op].kind].flags & OPF_COMM ? WORK_COMM : WORK_COMPUTE;
}

/* Without the layer in front ("L03.", also after "copy." and the like) and the micro-batch behind. */
const char *ins_class(const Step *s, const Ins *i, char *buf, size_t size) {
  ins_name(s, i, buf, size);
  char *mb = strstr(buf, " mb");
  if (mb) *mb = 0;
  for (char *p = buf; *p; p++) {
    bool begins = p == buf || p[-1] == '.';
    if (!begins || p[0] != 'L' || strspn(p + 1, "0123456789") == 0) continue;
    size_t n = 1 + strspn(p + 1, "0123456789");
    if (p[n] != '.') continue;
    memmove(p, p + n + 1, strlen(p + n + 1) + 1);
    break;
  }
  return buf;
}

double ins_flops(const Step *s, const Ins *i, const DealMb *mb, const int64_t *n_row) {
  if (i->kind != INS_KERNEL) return 0;
  const Program *p = s->chunk[i->chunk];
  const Op *op = &p->op[i->op];
  const OpDesc *d = &op_desc[op->kind];
  return d->flops ? d->flops(p, op, i->pass, &mb[i->mb], i->guard >= 0 ? n_row[i->guard] : 0) : 0;
}
