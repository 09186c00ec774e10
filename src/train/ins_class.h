/* What kind of work an instruction is, and what it is called over all layers and micro-batches: for profiles and traces. */
#ifndef ETALON_INS_CLASS_H
#define ETALON_INS_CLASS_H
#include "program/step.h"

typedef enum { WORK_COMPUTE, WORK_COMM, WORK_COPY, WORK_OPTIMIZER, N_WORK } WorkKind;
const char *work_name(WorkKind k);
WorkKind ins_work(const Step *s, const Ins *i);
/* "moe.gate/dW" for L03.moe.gate/dW mb2. Returns buf. */
const char *ins_class(const Step *s, const Ins *i, char *buf, size_t size);
/* Of one kernel call (multiply-adds count 2) with these micro-batches and routed rows; 0 for anything else. */
double ins_flops(const Step *s, const Ins *i, const DealMb *mb, const int64_t *n_row);
#endif
