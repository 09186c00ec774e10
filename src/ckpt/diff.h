/* What differs between two files of numbers: checkpoints, or golden files. One process, no MPI. Called by `etalon compare` and
 * `etalon ckpt diff`. */
#ifndef ETALON_DIFF_H
#define ETALON_DIFF_H
#include <stdio.h>
#include "base/arena.h"
#include "base/err.h"

typedef enum { FILE_CHECKPOINT, FILE_GOLDEN, FILE_OTHER } FileKind;
/* By content, not by name; a directory is one of checkpoints. ERR_CKPT: not there. */
bool diff_file_kind(const char *path, FileKind *kind, Err *e);

/* Compares every data set of two files of one kind in the order in which a run makes them: step by step, a forward pass from the bottom up,
 * gradients from the top down. Floats are equal when their bits are; with tolerance > 0, also when a data set's relative L2 difference is
 * at most that. Prints a line for each of the first differing data sets: elements that differ, largest absolute and relative L2 difference.
 * path: as in ckpt_read_meta. ERR_MISMATCH: names the first that differs, or is in one file only; ERR_CKPT. */
bool diff_run(Arena *a, FileKind kind, const char *path_a, const char *path_b, double tolerance, FILE *out, Err *e);
#endif
