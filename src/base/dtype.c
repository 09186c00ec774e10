#include "base/dtype.h"

#include "base/err.h"

static const struct {
  size_t size;
  const char *name;
} dtypes[N_DTYPE] = {
    [DT_F32] = {4, "f32"}, [DT_F64] = {8, "f64"}, [DT_BF16] = {2, "bf16"}, [DT_I32] = {4, "i32"},
    [DT_I64] = {8, "i64"}, [DT_U8] = {1, "u8"},   [DT_U16] = {2, "u16"},   [DT_U32] = {4, "u32"},
};

size_t dtype_size(DType t) {
  CHECK((unsigned)t < N_DTYPE, "no data type %d", (int)t);
  return dtypes[t].size;
}

const char *dtype_name(DType t) {
  CHECK((unsigned)t < N_DTYPE, "no data type %d", (int)t);
  return dtypes[t].name;
}
