#include "base/dtype.h"

#include <string.h>

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

static double get_bf16(const uint16_t *x) {
  uint32_t bits = (uint32_t)*x << 16;
  float f;
  memcpy(&f, &bits, sizeof f);
  return (double)f;
}
static uint16_t put_bf16(double v) {
  float f = (float)v;
  uint32_t bits;
  memcpy(&bits, &f, sizeof bits);
  if (f != f) return (uint16_t)(bits >> 16 | 0x40);
  return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

double dtype_get(const void *data, DType t, int64_t i) {
  switch (t) {
  case DT_F32:
    return (double)((const float *)data)[i];
  case DT_F64:
    return ((const double *)data)[i];
  case DT_BF16:
    return get_bf16((const uint16_t *)data + i);
  case DT_I32:
    return (double)((const int32_t *)data)[i];
  default:
    CHECK(false, "no number of type %s", dtype_name(t));
  }
}

void dtype_put(void *data, DType t, int64_t i, double v) {
  switch (t) {
  case DT_F32:
    ((float *)data)[i] = (float)v;
    break;
  case DT_F64:
    ((double *)data)[i] = v;
    break;
  case DT_BF16:
    ((uint16_t *)data)[i] = put_bf16(v);
    break;
  case DT_I32:
    ((int32_t *)data)[i] = (int32_t)v;
    break;
  default:
    CHECK(false, "no number of type %s", dtype_name(t));
  }
}
