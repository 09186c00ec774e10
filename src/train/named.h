/* Tables of named rows that ranks fill for themselves (stages of a pipeline have other names) and read summed up. For hashes and profile. */
#ifndef ETALON_NAMED_H
#define ETALON_NAMED_H
#include "comm/comm.h"

enum { NAMED_TEXT = 56, NAMED_VALUES = 4 };
typedef struct NamedRow { char name[NAMED_TEXT]; uint64_t v[NAMED_VALUES]; } NamedRow;
typedef struct NamedList { NamedRow *row; int n, room; } NamedList;

NamedList named_open(Arena *a, int room);
/* The row of that name, made if it is not there. Names are cut at NAMED_TEXT - 1 bytes. CHECK: there is room. */
NamedRow *named_at(NamedList *l, const char *name);
/* Collective, for short tables: each rank tells its rows in turn. Sums modulo 2^64, names in order of rank, on every rank, in `a`. */
NamedList named_sum(World *w, Arena *a, const NamedList *mine);
#endif
