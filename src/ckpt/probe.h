/* A trial in a child process, for libraries that crash or loop on damaged input: HDF5 1.10 overruns its buffers on some corrupted global
 * heaps and object headers (two to six of a thousand files with random bytes changed in their metadata). Called before such a file is
 * read in earnest. Not a sandbox: it guards against accidents, not against an exploit. */
#ifndef ETALON_PROBE_H
#define ETALON_PROBE_H
#include <stdbool.h>
#include "base/err.h"

/* Forks; the child runs touch(ctx) and ends. ERR_CKPT when it did not get to the end (a signal, or 5 s of CPU time without progress), or
 * no process could be made. What touch changes in memory is lost. It may not use MPI, threads or files that the parent has open. */
bool probe_survives(void (*touch)(void *ctx), void *ctx, Err *e);
/* For touch: another piece has been read, however large the file is. */
void probe_progress(void);
#endif
