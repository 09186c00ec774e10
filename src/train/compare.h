/* `etalon compare A B`: where two runs part. Two files of metrics, golden files, or checkpoints. One process, no MPI. */
#ifndef ETALON_COMPARE_H
#define ETALON_COMPARE_H
#include <stdio.h>
#include "base/arena.h"
#include "base/err.h"

/* Metrics: steps that both files have, in order. Numbers are equal when they are written alike; with tolerance > 0 also when their relative
 * difference is at most that, and then hashes are not compared. Time, speed and memory are not looked at. Prints the first step that
 * differs: each number, and with log.hash_interval the first tensor (and with log.hash_values the first value of the forward pass and the
 * sequences). Files of other kinds: ckpt/diff.h.
 * ERR_MISMATCH: names the first difference; ERR_DATA, ERR_CKPT: a file that cannot be read, or two of different kinds, or no common step. */
bool compare_run(Arena *a, const char *path_a, const char *path_b, double tolerance, FILE *out, Err *e);
#endif
