/* `etalon check FILE`: trains a golden file's model (ckpt/golden.h) for the file's few steps and compares losses, gradient norms,
 * activations, router choices, every gradient and every weight with what the file holds. Layout and numerics are the caller's; model,
 * data and optimizer are the file's. Called by main. */
#ifndef ETALON_CHECK_H
#define ETALON_CHECK_H
#include <stdio.h>

#include "base/arena.h"
#include "comm/comm.h"
/* Collective. sets: "a.b=value", on top of the file's config, guard mode, and fp64 with windows of 4 tokens, or the numerics that the file names. Rank 0
 * prints to `out` an error per gradient, then a table. Errors are relative, L2; where the file has zero, zero is wanted. A gradient's error is
 * relative to a thousandth of all gradients' root mean square at least: what is smaller is rounding of zeros. Tolerances: fp64 1e-11 for
 * everything; fp32 2e-5, but 5e-5 for weights, judged as one vector (Adam's first updates are about lr * sign(g)), and 2e-4 for gradient
 * norms after updates (the second opinion of tests/golden moves by up to 1e-4 when noise of 3e-7 is added to its gradients). bf16, whose
 * rounding error is 2e-3: losses 2e-2, values and gradients (as one vector) 1e-1, weights (as one vector) 5e-2, norms after updates 5e-1;
 * two to five times the largest error in the files of tests/golden. Router choices that differ are told, not judged: near ties go either
 * way, and values of those tokens with them.
 * ERR_CONFIG: a family that is not in this version, or settings that do not fit; ERR_CKPT: missing, damaged or inconsistent file;
 * ERR_NONFINITE; ERR_MISMATCH: names the first quantity beyond its tolerance and its worst tensor. */
bool check_run(World *w, Arena *a, const char *file, const char *const *sets, int n_sets, FILE *out, Err *e);
#endif
