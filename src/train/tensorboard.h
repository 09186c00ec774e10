/* Event files that TensorBoard reads: scalars only, no protobuf library. A record is a length (u64), a masked CRC-32C of it, the bytes of an
 * Event message, a masked CRC-32C of them (TensorFlow's record_writer.cc and event.proto). Called by metrics. */
#ifndef ETALON_TENSORBOARD_H
#define ETALON_TENSORBOARD_H
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include "base/arena.h"
#include "base/err.h"

typedef struct TensorBoard { FILE *f; } TensorBoard;
/* A new file in `dir`, which is made if its parent is there; f NULL when dir is empty. ERR_CONFIG. */
bool tensorboard_open(TensorBoard *t, Arena *a, const char *dir, Err *e);
void tensorboard_put(TensorBoard *t, int64_t step, const char *tag, double v);
bool tensorboard_flush(TensorBoard *t);       /* false: it could not be written; errno says why, and t is closed */
void tensorboard_close(TensorBoard *t);

/* The bytes of one record. Tags are cut at TENSORBOARD_TAG bytes. wall: seconds since 1970. Return the number of bytes. */
enum { TENSORBOARD_TAG = 200, TENSORBOARD_RECORD = TENSORBOARD_TAG + 64 };
size_t tensorboard_version(uint8_t out[TENSORBOARD_RECORD], double wall);
size_t tensorboard_scalar(uint8_t out[TENSORBOARD_RECORD], double wall, int64_t step, const char *tag, float v);
#endif
