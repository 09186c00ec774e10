/* Element types of values, files and checkpoints. */
#ifndef ETALON_DTYPE_H
#define ETALON_DTYPE_H
#include <stddef.h>
#include <stdint.h>
typedef enum { DT_F32, DT_F64, DT_BF16, DT_I32, DT_I64, DT_U8, DT_U16, DT_U32, N_DTYPE } DType;
size_t      dtype_size(DType t);   /* bytes */
const char *dtype_name(DType t);   /* "f32", ... */
/* Element i of an array, and back. Real types and i32. To BF16: to float, then to the nearest, ties to even. */
double dtype_get(const void *data, DType t, int64_t i);
void   dtype_put(void *data, DType t, int64_t i, double v);
#endif
