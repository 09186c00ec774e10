/* Element types of values, files and checkpoints. */
#ifndef ETALON_DTYPE_H
#define ETALON_DTYPE_H
#include <stddef.h>
typedef enum { DT_F32, DT_F64, DT_BF16, DT_I32, DT_I64, DT_U8, DT_U16, DT_U32, N_DTYPE } DType;
size_t      dtype_size(DType t);   /* bytes */
const char *dtype_name(DType t);   /* "f32", ... */
#endif
