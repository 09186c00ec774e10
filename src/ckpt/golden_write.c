#include "ckpt/golden_write.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "base/path.h"
#include "ckpt/h5util.h"

struct GoldenOut {
  World *w;
  const char *path, *part;
  hid_t file; /* < 0 on other ranks */
};

static bool put_text(hid_t file, const char *name, const char *text) {
  hid_t type = H5Tcopy(H5T_C_S1), space = H5Screate(H5S_SCALAR);
  H5Tset_size(type, H5T_VARIABLE);
  H5Tset_cset(type, H5T_CSET_UTF8);
  hid_t attr = H5Acreate2(file, name, type, space, H5P_DEFAULT, H5P_DEFAULT);
  bool ok = attr >= 0 && H5Awrite(attr, type, &text) >= 0;
  if (attr >= 0) H5Aclose(attr);
  H5Sclose(space);
  H5Tclose(type);
  return ok;
}

bool golden_create(GoldenOut **out, World *w, Arena *a, const char *path, const GoldenConfig *c, const char *numerics, Err *e) {
  GoldenOut *g = *out = ARENA_NEW(a, GoldenOut, 1);
  *g = (GoldenOut){.w = w, .path = path, .part = arena_printf(a, "%s.part", path), .file = -1};
  if (world_rank(w) != 0) return true;
  h5_silence();
  TRY(path_replaceable(path, e));
  g->file = H5Fcreate(g->part, H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
  if (g->file < 0) {
    h5_fail(e, g->part, "cannot be written");
    unlink(g->part);
    return false;
  }
  return (put_text(g->file, "config", golden_config_text(c, a)) && put_text(g->file, "numerics", numerics)) ||
         h5_fail(e, g->part, "its attributes cannot be written");
}

static void put(GoldenOut *g, const char *name, hid_t stored, hid_t memory, int n_dim, const int64_t *dims, const void *data, Err *e) {
  if (g->file < 0 || e->code != ERR_NONE) return;
  hsize_t d[GOLDEN_MAX_DIM];
  CHECK(n_dim <= GOLDEN_MAX_DIM, "%s: %d dims", name, n_dim);
  for (int i = 0; i < n_dim; i++) d[i] = (hsize_t)dims[i];
  hid_t space = n_dim ? H5Screate_simple(n_dim, d, NULL) : H5Screate(H5S_SCALAR), links = H5Pcreate(H5P_LINK_CREATE),
        create = H5Pcreate(H5P_DATASET_CREATE);
  H5Pset_create_intermediate_group(links, 1);
  H5Pset_obj_track_times(create, false);
  hid_t set = H5Dcreate2(g->file, name, stored, space, links, create, H5P_DEFAULT);
  if (set < 0 || H5Dwrite(set, memory, H5S_ALL, H5S_ALL, H5P_DEFAULT, data) < 0) h5_fail(e, g->part, "/%s cannot be written", name);
  if (set >= 0) H5Dclose(set);
  H5Pclose(create);
  H5Pclose(links);
  H5Sclose(space);
}

void golden_put_f64(GoldenOut *g, const char *name, int n_dim, const int64_t *dims, const double *data, Err *e) {
  put(g, name, H5T_IEEE_F64LE, H5T_NATIVE_DOUBLE, n_dim, dims, data, e);
}
void golden_put_i64(GoldenOut *g, const char *name, int n_dim, const int64_t *dims, const int64_t *data, Err *e) {
  put(g, name, H5T_STD_I64LE, H5T_NATIVE_INT64, n_dim, dims, data, e);
}

bool golden_finish(GoldenOut *g, Err *e) {
  if (g->file >= 0 && H5Fclose(g->file) < 0) h5_fail(e, g->part, "cannot be written to the end");
  bool mine = g->file >= 0, ok = world_agree(g->w, e);
  if (mine && ok && rename(g->part, g->path) != 0) err_set(e, ERR_CKPT, "%s: %s", g->path, strerror(errno));
  if (mine && !ok) unlink(g->part);
  return world_agree(g->w, e);
}
