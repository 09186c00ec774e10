/* One logical tensor as a data set: contiguous, allocated at once, never filled with zeros first; or in deflated chunks of whole rows. */
#include <inttypes.h>
#include <string.h>

#include "base/hash.h"
#include "ckpt/h5util.h"

hid_t tensor_type(DType t) {
  switch (t) {
  case DT_F32:
    return H5T_IEEE_F32LE;
  case DT_F64:
    return H5T_IEEE_F64LE;
  case DT_BF16:
    return H5T_STD_U16LE; /* HDF5 1.10 has no such type: bits, and the attribute dtype says what they are */
  case DT_I32:
    return H5T_STD_I32LE;
  case DT_I64:
    return H5T_STD_I64LE;
  case DT_U8:
    return H5T_STD_U8LE;
  case DT_U16:
    return H5T_STD_U16LE;
  case DT_U32:
    return H5T_STD_U32LE;
  default:
    return -1;
  }
}

size_t tensor_row_bytes(const CkptTensor *t) { return (size_t)t->cols * dtype_size(t->dtype); }

enum { CHUNK_BYTES = 1 << 20, LEAST_BYTES = 64 << 10 /* a chunk's index costs more than a smaller tensor saves */ };
int64_t tensor_chunk_rows(const CkptTensor *t) {
  int64_t fit = (int64_t)(CHUNK_BYTES / tensor_row_bytes(t));
  return fit < 1 ? 1 : fit < t->rows ? fit : t->rows;
}

/* How the data lies: rows longer than a chunk's bytes are cut (a chunk may not exceed 4 GiB). */
static hid_t tensor_layout(const CkptTensor *t, int compress) {
  hid_t create = H5Pcreate(H5P_DATASET_CREATE);
  int64_t wide = (int64_t)(CHUNK_BYTES / dtype_size(t->dtype));
  hsize_t chunk[2] = {(hsize_t)tensor_chunk_rows(t), (hsize_t)(t->cols < wide ? t->cols : wide)};
  if (compress && (size_t)t->rows * tensor_row_bytes(t) >= LEAST_BYTES) {
    H5Pset_chunk(create, t->n_dim, chunk + 2 - t->n_dim);
    H5Pset_deflate(create, (unsigned)compress);
  } else {
    H5Pset_layout(create, H5D_CONTIGUOUS);
    H5Pset_alloc_time(create, H5D_ALLOC_TIME_EARLY);
  }
  H5Pset_fill_time(create, H5D_FILL_TIME_NEVER);
  H5Pset_obj_track_times(create, false);
  return create;
}

static hid_t tensor_create(hid_t group, const CkptTensor *t, int compress) {
  CHECK((t->n_dim == 2 || (t->n_dim == 1 && t->rows == 1)) && t->rows > 0 && t->cols > 0, "tensor %s: %d dims, [%" PRId64 ", %" PRId64 "]",
        t->name, t->n_dim, t->rows, t->cols);
  CHECK(t->name[0] && !strchr(t->name, '/'), "tensor name '%s'", t->name);
  hsize_t dims[2] = {(hsize_t)t->rows, (hsize_t)t->cols};
  hid_t space = H5Screate_simple(t->n_dim, dims + 2 - t->n_dim, NULL), create = tensor_layout(t, compress);
  hid_t d = H5Dcreate2(group, t->name, tensor_type(t->dtype), space, H5P_DEFAULT, create, H5P_DEFAULT);
  H5Pclose(create);
  H5Sclose(space);
  if (d < 0) return -1;
  if (h5_put_u64(d, "hash", t->hash) && h5_put_text(d, "dtype", dtype_name(t->dtype))) return d;
  H5Dclose(d);
  return -1;
}

static bool set_create(hid_t file, hid_t group, const CkptSet *s, int compress, const char *path, uint64_t *offset, Err *e) {
  hid_t other = s->same_as ? H5Gopen2(file, s->same_as, H5P_DEFAULT) : -1;
  if (s->same_as && other < 0) return h5_fail(e, path, "group /%s for the links of /%s", s->same_as, s->group);
  bool ok = true;
  for (int i = 0; i < s->n_tensor && ok; i++) {
    const char *name = s->tensor[i].name;
    hid_t d = other >= 0 ? -1 : tensor_create(group, &s->tensor[i], compress);
    ok = other >= 0 ? H5Lcreate_hard(other, name, group, name, H5P_DEFAULT, H5P_DEFAULT) >= 0 : d >= 0;
    if (d >= 0) {
      if (!compress) offset[i] = H5Dget_offset(d);
      ok = compress || offset[i] != HADDR_UNDEF;
      H5Dclose(d);
    }
    if (!ok) h5_fail(e, path, "cannot create /%s/%s", s->group, name);
  }
  if (other >= 0) H5Gclose(other);
  return ok;
}

hid_t group_create(hid_t at, const char *name) {
  hid_t create = H5Pcreate(H5P_GROUP_CREATE);
  H5Pset_obj_track_times(create, false); /* equal content, equal bytes */
  hid_t group =
      H5Lexists(at, name, H5P_DEFAULT) > 0 ? H5Gopen2(at, name, H5P_DEFAULT) : H5Gcreate2(at, name, H5P_DEFAULT, create, H5P_DEFAULT);
  H5Pclose(create);
  return group;
}

/* a/b: a, then b in it. (HDF5 can make parents by itself, but notes the time in them.) */
static hid_t path_create(hid_t file, const char *path) {
  enum { NAME = 64 };
  hid_t at = H5Gopen2(file, "/", H5P_DEFAULT);
  while (at >= 0 && *path) {
    char name[NAME];
    size_t n = strcspn(path, "/");
    CHECK(n > 0 && n < NAME, "group /%s", path);
    memcpy(name, path, n);
    name[n] = 0;
    hid_t next = group_create(at, name);
    H5Gclose(at);
    at = next;
    path += n + (path[n] == '/');
  }
  return at;
}

bool tensor_create_all(hid_t file, const CkptSet *set, int n_set, int compress, const char *path, uint64_t *offset, Err *e) {
  bool ok = true;
  for (int i = 0; i < n_set && ok; offset += set[i++].n_tensor) {
    hid_t group = path_create(file, set[i].group);
    ok = group >= 0 ? set_create(file, group, &set[i], compress, path, offset, e)
                    : h5_fail(e, path, "cannot create group /%s", set[i].group);
    if (group >= 0) H5Gclose(group);
  }
  return ok;
}

bool tensor_describe(hid_t d, CkptTensor *t) {
  enum { TEXT = 64 };
  char room[TEXT];
  Arena text = {.base = room, .cap = TEXT, .name = "dtype"};
  hid_t space = H5Dget_space(d), type = H5Dget_type(d);
  hsize_t dims[2] = {1, 1};
  int n_dim = space >= 0 ? H5Sget_simple_extent_ndims(space) : -1;
  bool ok = (n_dim == 1 || n_dim == 2) && H5Sget_simple_extent_dims(space, dims + 2 - n_dim, NULL) >= 0;
  char *name = ok ? h5_get_text(d, "dtype", &text) : NULL;
  t->dtype = N_DTYPE;
  for (int i = 0; i < N_DTYPE && name; i++)
    if (strcmp(dtype_name((DType)i), name) == 0) t->dtype = (DType)i;
  ok = ok && t->dtype != N_DTYPE && type >= 0 && H5Tequal(type, tensor_type(t->dtype)) > 0 && h5_get_u64(d, "hash", &t->hash) &&
       dims[0] > 0 && dims[1] > 0;
  t->n_dim = n_dim;
  t->rows = (int64_t)dims[0];
  t->cols = (int64_t)dims[1];
  if (type >= 0) H5Tclose(type);
  if (space >= 0) H5Sclose(space);
  return ok;
}

static bool tensor_matches(const char *path, const char *group, const CkptTensor *want, const CkptTensor *found, Err *e) {
  if (found->n_dim != want->n_dim || found->rows != want->rows || found->cols != want->cols)
    return err_set(e, ERR_CKPT,
                   "%s: /%s/%s has %d dims, [%" PRId64 ", %" PRId64 "]; the model here needs %d, [%" PRId64 ", %" PRId64
                   "]. The checkpoint is of another model",
                   path, group, want->name, found->n_dim, found->rows, found->cols, want->n_dim, want->rows, want->cols);
  if (found->dtype != want->dtype)
    return err_set(e, ERR_CKPT, "%s: /%s/%s is of type %s; this run needs %s (numerics.dtype)", path, group, want->name,
                   dtype_name(found->dtype), dtype_name(want->dtype));
  return true;
}

hid_t tensor_open(hid_t file, const char *path, const char *group, const CkptTensor *t, Err *e) {
  hid_t g = H5Gopen2(file, group, H5P_DEFAULT);
  if (g < 0) {
    h5_fail(e, path, "group /%s cannot be opened", group);
    return -1;
  }
  htri_t there = H5Lexists(g, t->name, H5P_DEFAULT);
  hid_t d = there > 0 ? H5Dopen2(g, t->name, H5P_DEFAULT) : -1;
  CkptTensor found;
  bool ok = d >= 0 && tensor_describe(d, &found);
  H5Gclose(g);
  if (there == 0)
    err_set(e, ERR_CKPT, "%s: /%s/%s is missing, though the model here has it. The checkpoint is of another model", path, group, t->name);
  else if (!ok)
    h5_fail(e, path, "/%s/%s cannot be read", group, t->name);
  else if (tensor_matches(path, group, t, &found, e))
    return d;
  if (d >= 0) H5Dclose(d);
  return -1;
}

typedef herr_t TransferFn(hid_t d, hid_t type, hid_t in_memory, hid_t in_file, void *data);
static herr_t transfer_in(hid_t d, hid_t type, hid_t in_memory, hid_t in_file, void *data) {
  return H5Dread(d, type, in_memory, in_file, H5P_DEFAULT, data);
}
static herr_t transfer_out(hid_t d, hid_t type, hid_t in_memory, hid_t in_file, void *data) {
  return H5Dwrite(d, type, in_memory, in_file, H5P_DEFAULT, data);
}
static bool tensor_transfer(TransferFn *transfer, hid_t d, const CkptTensor *t, const CkptPiece *p) {
  hsize_t start[2] = {(hsize_t)p->row, (hsize_t)p->col}, count[2] = {(hsize_t)p->n_row, (hsize_t)p->n_col};
  int skip = 2 - t->n_dim;
  hid_t in_file = H5Dget_space(d), in_memory = H5Screate_simple(t->n_dim, count + skip, NULL);
  bool ok = in_file >= 0 && in_memory >= 0 && H5Sselect_hyperslab(in_file, H5S_SELECT_SET, start + skip, NULL, count + skip, NULL) >= 0 &&
            transfer(d, tensor_type(t->dtype), in_memory, in_file, p->data) >= 0;
  if (in_file >= 0) H5Sclose(in_file);
  if (in_memory >= 0) H5Sclose(in_memory);
  return ok;
}
bool tensor_read(hid_t d, const CkptTensor *t, const CkptPiece *p) { return tensor_transfer(transfer_in, d, t, p); }
bool tensor_write(hid_t d, const CkptTensor *t, const CkptPiece *p) { return tensor_transfer(transfer_out, d, t, p); }

uint64_t piece_hash(const CkptTensor *t, const CkptPiece *p) {
  uint64_t key = hash_name(t->name), sum = 0;
  size_t run = (size_t)p->n_col * dtype_size(t->dtype);
  for (int64_t r = 0; r < p->n_row; r++)
    sum +=
        hash_run(key, (uint64_t)((p->row + r) * t->cols + p->col), (const char *)p->data + (size_t)r * run, dtype_size(t->dtype), p->n_col);
  return sum;
}

bool tensor_hash_rows(hid_t d, const CkptTensor *t, int64_t from, int64_t to, void *buf, size_t buf_bytes, uint64_t *sum) {
  int64_t fit = (int64_t)(buf_bytes / dtype_size(t->dtype)), n_row = fit > t->cols ? fit / t->cols : 1,
          n_col = fit < t->cols ? fit : t->cols;
  uint64_t key = hash_name(t->name);
  for (int64_t row = from; row < to; row += n_row)
    for (int64_t col = 0; col < t->cols; col += n_col) { /* more than one round only where a row is longer than buf */
      CkptPiece p = {.row = row,
                     .n_row = to - row < n_row ? to - row : n_row,
                     .col = col,
                     .n_col = t->cols - col < n_col ? t->cols - col : n_col,
                     .data = buf};
      if (!tensor_read(d, t, &p)) return false;
      *sum += hash_run(key, (uint64_t)(row * t->cols + col), buf, dtype_size(t->dtype), p.n_row * p.n_col);
    }
  return true;
}

static void piece_check(const CkptSet *s, const CkptPiece *p) {
  CHECK(p->tensor >= 0 && p->tensor < s->n_tensor, "/%s: piece of tensor %d of %d", s->group, p->tensor, s->n_tensor);
  const CkptTensor *t = &s->tensor[p->tensor];
  bool fits = p->row >= 0 && p->n_row >= 0 && p->row + p->n_row <= t->rows && p->col >= 0 && p->n_col >= 0 && p->col + p->n_col <= t->cols;
  CHECK(fits, "/%s/%s: rows %" PRId64 " + %" PRId64 " of %" PRId64 ", columns %" PRId64 " + %" PRId64 " of %" PRId64, s->group, t->name,
        p->row, p->n_row, t->rows, p->col, p->n_col, t->cols);
}

PieceIndex piece_index(Arena *a, const CkptSet *s) {
  PieceIndex x = {ARENA_NEW(a, int, s->n_tensor + 2), ARENA_NEW(a, int, s->n_piece + 1)};
  for (int i = 0; i < s->n_piece; i++) {
    piece_check(s, &s->piece[i]);
    x.start[s->piece[i].tensor + 2]++;
  }
  for (int t = 0; t < s->n_tensor; t++) x.start[t + 2] += x.start[t + 1]; /* start[t + 1]: where the next piece of t goes */
  for (int i = 0; i < s->n_piece; i++) x.order[x.start[s->piece[i].tensor + 1]++] = i;
  return x;
}

int set_count_tensors(const CkptSet *set, int n_set) {
  int n = 0;
  for (int i = 0; i < n_set; i++) n += set[i].n_tensor;
  return n;
}

void piece_count_elements(World *w, const CkptSet *set, int n_set, uint64_t *out) {
  int first = 0;
  for (int i = 0; i < n_set; first += set[i++].n_tensor)
    for (int k = 0; k < set[i].n_piece; k++) {
      const CkptPiece *p = &set[i].piece[k];
      piece_check(&set[i], p);
      out[first + p->tensor] += (uint64_t)(p->n_row * p->n_col);
    }
  comm_allreduce_u64(w, AXES_WORLD, out, first);
}
