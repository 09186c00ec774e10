#include "train/tensorboard.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/crc.h"
#include "base/timer.h"

/* ---- protobuf: a field is a key (number << 3 | wire type) and a value ------------------------------------------------------------ */
enum { WIRE_VARINT = 0, WIRE_64 = 1, WIRE_BYTES = 2, WIRE_32 = 5 };

typedef struct Bytes {
  uint8_t *at;
  size_t n;
} Bytes;

static void put_raw(Bytes *b, const void *p, size_t n) {
  memcpy(b->at + b->n, p, n);
  b->n += n;
}
static void put_little(Bytes *b, uint64_t v, int n) {
  for (int i = 0; i < n; i++) b->at[b->n++] = (uint8_t)(v >> 8 * i);
}
static void put_varint(Bytes *b, uint64_t v) {
  for (; v >= 0x80; v >>= 7) b->at[b->n++] = (uint8_t)(v | 0x80);
  b->at[b->n++] = (uint8_t)v;
}
static void put_key(Bytes *b, int field, int wire) { put_varint(b, (uint64_t)(field << 3 | wire)); }
static void put_bytes(Bytes *b, int field, const void *p, size_t n) {
  put_key(b, field, WIRE_BYTES);
  put_varint(b, n);
  put_raw(b, p, n);
}
static void put_double(Bytes *b, int field, double v) {
  uint64_t bits;
  memcpy(&bits, &v, sizeof bits);
  put_key(b, field, WIRE_64);
  put_little(b, bits, 8);
}
static void put_float(Bytes *b, int field, float v) {
  uint32_t bits;
  memcpy(&bits, &v, sizeof bits);
  put_key(b, field, WIRE_32);
  put_little(b, bits, 4);
}

/* ---- records --------------------------------------------------------------------------------------------------------------------- */
static uint32_t masked_crc(const void *p, size_t n) {
  uint32_t c = crc32c(p, n);
  return (c >> 15 | c << 17) + 0xa282ead8u;
}

static size_t put_record(uint8_t *out, const Bytes *event) {
  Bytes b = {out, 0};
  put_little(&b, event->n, 8);
  put_little(&b, masked_crc(out, 8), 4);
  put_raw(&b, event->at, event->n);
  put_little(&b, masked_crc(event->at, event->n), 4);
  return b.n;
}

size_t tensorboard_version(uint8_t out[TENSORBOARD_RECORD], double wall) {
  static const char version[] = "brain.Event:2";
  uint8_t room[TENSORBOARD_RECORD];
  Bytes event = {room, 0};
  put_double(&event, 1, wall);
  put_bytes(&event, 3, version, strlen(version));
  return put_record(out, &event);
}

size_t tensorboard_scalar(uint8_t out[TENSORBOARD_RECORD], double wall, int64_t step, const char *tag, float v) {
  uint8_t room[3][TENSORBOARD_RECORD];
  Bytes value = {room[0], 0}, summary = {room[1], 0}, event = {room[2], 0};
  put_bytes(&value, 1, tag, strnlen(tag, TENSORBOARD_TAG));
  put_float(&value, 2, v);
  put_bytes(&summary, 1, value.at, value.n);
  put_double(&event, 1, wall);
  put_key(&event, 2, WIRE_VARINT);
  put_varint(&event, (uint64_t)step);
  put_bytes(&event, 5, summary.at, summary.n);
  return put_record(out, &event);
}

/* ---- files ----------------------------------------------------------------------------------------------------------------------- */
bool tensorboard_open(TensorBoard *t, Arena *a, const char *dir, Err *e) {
  char host[128] = "host";
  uint8_t record[TENSORBOARD_RECORD];
  *t = (TensorBoard){0};
  if (!dir || !*dir) return true;
  gethostname(host, sizeof host - 1);
  if (mkdir(dir, 0777) != 0 && errno != EEXIST)
    return err_set(e, ERR_CONFIG, "log.tensorboard: cannot make the directory \"%s\": %s", dir, strerror(errno));
  const char *path = arena_printf(a, "%s/events.out.tfevents.%010lld.%s.%d", dir, (long long)timer_unix(), host, (int)getpid());
  t->f = fopen(path, "wb");
  if (!t->f) return err_set(e, ERR_CONFIG, "log.tensorboard: cannot write \"%s\": %s", path, strerror(errno));
  fwrite(record, 1, tensorboard_version(record, timer_unix()), t->f);
  return true;
}

void tensorboard_put(TensorBoard *t, int64_t step, const char *tag, double v) {
  uint8_t record[TENSORBOARD_RECORD];
  if (t->f) fwrite(record, 1, tensorboard_scalar(record, timer_unix(), step, tag, (float)v), t->f);
}

bool tensorboard_flush(TensorBoard *t) {
  if (!t->f || (fflush(t->f) == 0 && !ferror(t->f))) return true;
  int why = errno;
  tensorboard_close(t);
  errno = why;
  return false;
}

void tensorboard_close(TensorBoard *t) {
  if (t->f) fclose(t->f);
  t->f = NULL;
}
