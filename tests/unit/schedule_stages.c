/* Stages of a pipeline: every layer on exactly one, in order, whatever divides what. */
#include "unit/train_rig.h"

static bool spans(Rig *r, int layers, int n_virtual, const char *list, StageSpan *span) {
  char set[3][64];
  *r = (Rig){0};
  arena_open(&r->a, "stages", (size_t)1 << 24);
  snprintf(set[0], sizeof set[0], "model.num_hidden_layers=%d", layers);
  snprintf(set[1], sizeof set[1], "layout.pp_layers=%s", list);
  snprintf(set[2], sizeof set[2], "layout.pp=%d", n_virtual);
  if (!rig_read(r, RIG_ODD, n_virtual, RIG_SETS(set[0], set[1], set[2]))) return false;
  model_stages(&r->doc.c, n_virtual, span);
  return true;
}

static void every_layer_once(void **state) {
  (void)state;
  /* among them 30 on 4, 10 on 3, 7 on 2, 62 on 4; and more stages than layers */
  static const int layers[] = {1, 2, 3, 7, 10, 30, 62}, stages[] = {1, 2, 3, 4, 8, 13, 64};
  for (size_t i = 0; i < sizeof layers / sizeof *layers; i++)
    for (size_t k = 0; k < sizeof stages / sizeof *stages; k++) {
      Rig r;
      StageSpan span[64];
      RIG_MUST(&r, spans(&r, layers[i], stages[k], "", span));
      int next = 0, most = 0;
      for (int v = 0; v < stages[k]; v++) {
        assert_true(span[v].first_layer == next && span[v].n_layer >= 0);
        assert_int_equal(span[v].embeds, v == 0);
        assert_int_equal(span[v].heads, v == stages[k] - 1);
        next += span[v].n_layer;
        most = span[v].n_layer > most ? span[v].n_layer : most;
      }
      assert_int_equal(next, layers[i]);
      assert_true(most <= (layers[i] + stages[k] - 1) / stages[k] + 1); /* the head is as heavy as a layer or two of this model */
      arena_close(&r.a);
    }
}

static void as_the_list_says(void **state) {
  (void)state;
  Rig r;
  StageSpan span[4];
  RIG_MUST(&r, spans(&r, 30, 4, "8,8,7,7", span));
  assert_true(span[1].first_layer == 8 && span[2].first_layer == 16 && span[3].first_layer == 23 && span[3].n_layer == 7);
  arena_close(&r.a);
  RIG_MUST(&r, spans(&r, 3, 4, "0,3,0,0", span));
  assert_true(span[0].n_layer == 0 && span[1].n_layer == 3 && span[3].n_layer == 0 && span[3].heads);
  arena_close(&r.a);
  RIG_MUST(&r, spans(&r, 30, 4, "8, 8, 7,  7", span));
  assert_true(span[3].first_layer == 23 && span[3].n_layer == 7);
  arena_close(&r.a);
  static const struct {
    const char *list, *says;
  } wrong[] = {{"8,8,7", "3 numbers, but there are 4"},        {"8,8,7,7,0", "5 numbers, but there are 4"},
               {"8,8,7,6", "add up to 29, not to the second"}, {"8,8,7,-7", "must be whole numbers"},
               {"8,8,7,7,", "must be whole numbers"},          {",8,8,7,7", "must be whole numbers"},
               {"8,,8,7,7", "must be whole numbers"},          {"8;8;7;7", "must be whole numbers"},
               {"8,8,7,7 ", "must be whole numbers"},          {" 8,8,7,7", "must be whole numbers"},
               {"8,8,7,7x", "must be whole numbers"},          {"8,8,+7,7", "must be whole numbers"},
               {"0x8,8,7,7", "must be whole numbers"},         {"30,0,0,4294967296", "must be whole numbers"}};
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
    if (spans(&r, 30, 4, wrong[i].list, span)) fail_msg("\"%s\" is taken", wrong[i].list);
    assert_int_equal(r.e.code, ERR_CONFIG);
    if (!strstr(r.e.text, wrong[i].says) || !strstr(r.e.text, "--set: layout.pp_layers = ")) fail_msg("%s", r.e.text);
    arena_close(&r.a);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(every_layer_once), cmocka_unit_test(as_the_list_says)};
  (void)rig_main;
  return cmocka_run_group_tests_name("stages", tests, NULL, NULL);
}
