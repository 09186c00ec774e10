#include "train/report.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/path.h"
#include "train/plot.h"

typedef struct Report {
  Arena *a;
  const Jsonl *j;
  FILE *f;
  JsonlPoint *saved;
  int64_t n_saved; /* checkpoints */
} Report;

/* ---- the page's own parts -------------------------------------------------------------------------------------------------------- */
static const char style[] =
    ":root{--bg:#f6f7f9;--card:#fff;--ink:#1c2430;--soft:#667085;--grid:#e8ebf0;--axis:#c4cad4;--c0:#2f6fde;--c1:#e0662b;--c2:#2a9d6f;--c3:"
    "#9a55c9}\n"
    "@media(prefers-color-scheme:dark){:root{--bg:#11151b;--card:#1a2029;--ink:#e8ecf2;--soft:#93a0b4;--grid:#28303c;--axis:#414c5c;--c0:#"
    "6ea2ff;--c1:#ff9560;--c2:#55cf9f;--c3:#c58cf0}}\n"
    "*{box-sizing:border-box}body{margin:0;background:var(--bg);color:var(--ink);font:15px/1.5 system-ui,-apple-system,\"Segoe "
    "UI\",Roboto,\"Helvetica Neue\",Arial,sans-serif}\n"
    "main{max-width:1240px;margin:0 auto;padding:32px 20px "
    "48px}h1{font-size:26px;font-weight:650;letter-spacing:-.01em;margin:0}h2{font-size:17px;font-weight:600;margin:32px 0 12px}\n"
    ".sub{color:var(--soft);margin:2px 0 22px;overflow-wrap:anywhere}\n"
    ".tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(150px,1fr));gap:12px;margin-bottom:16px}\n"
    ".tile,.card{background:var(--card);border:1px solid var(--grid);border-radius:12px}.tile{padding:12px 16px}.tile "
    "b{display:block;font-size:23px;font-weight:650;letter-spacing:-.01em;font-variant-numeric:tabular-nums}.tile "
    "span{color:var(--soft);font-size:13px}\n"
    ".grid2{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,430px),1fr));gap:16px}\n"
    ".card{margin:0;padding:14px 16px "
    "8px;position:relative}figcaption{display:flex;gap:8px;align-items:baseline;flex-wrap:wrap;margin-bottom:6px}figcaption>b{font-weight:"
    "600}figcaption span{color:var(--soft);font-size:13px}\n"
    ".legend{margin-left:auto}.legend b{color:var(--ink);font-weight:600;font-variant-numeric:tabular-nums}.legend "
    "i{display:inline-block;width:10px;height:10px;border-radius:3px;margin:0 5px 0 10px}.legend "
    "i.scale{width:64px;background:linear-gradient(90deg,color-mix(in srgb,var(--c1) 4%,transparent),var(--c1));margin:0 4px}\n"
    "svg{display:block;width:100%;height:auto;overflow:visible}.tick{fill:var(--soft);font-size:11px;font-variant-numeric:tabular-nums}"
    "line.grid{stroke:var(--grid)}.axis{stroke:var(--axis)}.mark{stroke:var(--axis);stroke-dasharray:2 "
    "4}.cursor{stroke:var(--soft);visibility:hidden}\n"
    ".line{fill:none;stroke-width:1.8;stroke-linejoin:round;stroke-linecap:round}.faint{stroke-width:1;opacity:.35}.range{opacity:.16}."
    "heat{fill:var(--c1)}\n"
    ".c0{stroke:var(--c0)}.c1{stroke:var(--c1)}.c2{stroke:var(--c2)}.c3{stroke:var(--c3)}.f0{fill:var(--c0)}.f1{fill:var(--c1)}.f2{fill:"
    "var(--c2)}.f3{fill:var(--c3)}i.f0{background:var(--c0)}i.f1{background:var(--c1)}i.f2{background:var(--c2)}i.f3{background:var(--c3)}"
    "\n"
    "table{border-collapse:collapse;width:100%;font-size:14px;font-variant-numeric:tabular-nums}th,td{text-align:right;padding:6px "
    "10px;border-top:1px solid var(--grid)}tr:first-child "
    "th{border-top:0;color:var(--soft);font-weight:500}th:first-child,td:first-child{text-align:left}.scroll{overflow-x:auto;padding:6px "
    "8px}\n"
    "#tip{position:fixed;pointer-events:none;background:var(--ink);color:var(--bg);border-radius:8px;padding:5px "
    "10px;font-size:12.5px;line-height:1.45;visibility:hidden;white-space:pre;font-variant-numeric:tabular-nums;z-index:1}\n"
    "footer{color:var(--soft);font-size:13px;margin-top:28px}@media print{body{background:#fff}.card,.tile{break-inside:avoid}}\n";

/* Nearest values beside the pointer; the page is whole without it. */
static const char script[] =
    "const tip=document.getElementById('tip'),num=v=>Math.abs(v)>=1e4||(v&&Math.abs(v)<1e-3)?v.toExponential(3):+v.toPrecision(5)+'';\n"
    "for(const s of document.querySelectorAll('svg.plot')){const d=JSON.parse(s.dataset.series),c=s.querySelector('.cursor'),D=s.dataset;\n"
    "s.addEventListener('mousemove',e=>{const r=s.getBoundingClientRect(),u=(e.clientX-r.left)/r.width*s.viewBox.baseVal.width,\n"
    "at=+D.first+(u-D.left)/(D.right-D.left)*(D.last-D.first);let best=null,text='';\n"
    "for(const p of d){let k=1;for(let i=1;i<p.length;i+=2)if(Math.abs(p[i]-at)<Math.abs(p[k]-at))k=i;\n"
    "if(best===null||Math.abs(p[k]-at)<Math.abs(best-at))best=p[k];text+='\\n'+p[0]+'  '+num(p[k+1])}\n"
    "const x=+D.left+(best-D.first)/(D.last-D.first)*(D.right-D.left);c.setAttribute('x1',x);c.setAttribute('x2',x);\n"
    "c.style.visibility=tip.style.visibility='visible';tip.textContent='step '+Math.round(best)+text;\n"
    "tip.style.top=e.clientY+14+'px';tip.style.left=Math.min(e.clientX+14,innerWidth-tip.offsetWidth-8)+'px'});\n"
    "s.addEventListener('mouseleave',()=>{c.style.visibility=tip.style.visibility='hidden'})}\n";

/* ---- numbers --------------------------------------------------------------------------------------------------------------------- */
static PlotSeries series(const Report *r, const char *name, const char *path) {
  JsonlPoint *p;
  PlotSeries s = {.name = name};
  s.n = jsonl_series(r->j, r->a, path, &p);
  s.p = p;
  return s;
}

static int by_value(const void *a, const void *b) {
  double x = ((const JsonlPoint *)a)->v, y = ((const JsonlPoint *)b)->v;
  return x < y ? -1 : x > y;
}
static double median(const Report *r, const PlotSeries *s) {
  if (!s->n) return NAN;
  JsonlPoint *copy = ARENA_NEW(r->a, JsonlPoint, s->n);
  memcpy(copy, s->p, (size_t)s->n * sizeof *copy);
  qsort(copy, (size_t)s->n, sizeof *copy, by_value);
  return copy[s->n / 2].v;
}
static double last_of(const PlotSeries *s) { return s->n ? s->p[s->n - 1].v : NAN; }
static double least_of(const PlotSeries *s) {
  double v = NAN;
  for (int64_t i = 0; i < s->n; i++) v = isnan(v) || s->p[i].v < v ? s->p[i].v : v;
  return v;
}

/* ---- tiles ----------------------------------------------------------------------------------------------------------------------- */
static void tile_text(const Report *r, const char *value, const char *name) {
  fprintf(r->f, "<div class=\"tile\"><b>%s</b><span>", value);
  html_text(r->f, name);
  fputs("</span></div>\n", r->f);
}
static void tile(const Report *r, double v, const char *format, const char *name) {
  char text[64];
  if (isnan(v)) return;
  if (format)
    snprintf(text, sizeof text, format, v);
  else
    plot_number(v, text, sizeof text);
  tile_text(r, text, name);
}

static void put_tiles(const Report *r) {
  PlotSeries loss = series(r, "", "lm loss"), valid = series(r, "", "lm loss validation"),
             speed = series(r, "", "throughput/tokens_per_sec"), mfu = series(r, "", "mfu"), time = series(r, "", "time"),
             device = series(r, "", "memory/device");
  char text[64];
  fputs("<div class=\"tiles\">\n", r->f);
  snprintf(text, sizeof text, "%lld", (long long)r->j->last);
  tile_text(r, text, "steps");
  tile(r, last_of(&loss), "%.4f", "training loss, last");
  tile(r, least_of(&valid), "%.4f", "validation loss, best");
  tile(r, median(r, &speed), NULL, "tokens a second, median");
  tile(r, 100 * median(r, &mfu), "%.0f %%", "of the products' peak");
  tile(r, last_of(&device) / 1048576, "%.1f MiB", "device memory of a rank");
  if (time.n > 1) {
    double s = last_of(&time) - time.p[0].v;
    tile(r, s < 120 ? s : s < 7200 ? s / 60 : s / 3600, s < 120 ? "%.0f s" : s < 7200 ? "%.0f min" : "%.1f h", "from first to last line");
  }
  fputs("</div>\n", r->f);
}

/* ---- plots ----------------------------------------------------------------------------------------------------------------------- */
static void put_plot(const Report *r, Plot p) {
  p.mark = r->saved, p.n_mark = r->n_saved;
  plot_write(r->f, r->a, &p, r->j->first, r->j->last);
}

static PlotSeries mebibytes(const Report *r, PlotSeries s) {
  JsonlPoint *p = ARENA_NEW(r->a, JsonlPoint, s.n + 1);
  for (int64_t i = 0; i < s.n; i++) p[i] = (JsonlPoint){s.p[i].iteration, s.p[i].v / 1048576};
  s.p = p;
  return s;
}

static void put_plots(const Report *r) {
  PlotSeries loss = series(r, "training", "lm loss"), valid = series(r, "validation", "lm loss validation"),
             norm = series(r, "gradient norm", "grad-norm"), load = series(r, "load", "moe/load_max_over_mean"),
             speed = series(r, "tokens a second", "throughput/tokens_per_sec"), mfu = series(r, "share of peak", "mfu");
  loss.smoothed = norm.smoothed = true, valid.dots = true;
  fputs("<div class=\"grid2\">\n", r->f);
  put_plot(r, (Plot){.title = "Loss", .note = "cross-entropy of a token, nats", .series = {loss, valid}, .n = 2});
  if (valid.n > 1) put_plot(r, (Plot){.title = "Validation loss", .note = "over all tokens", .series = {valid}, .n = 1});
  put_plot(r, (Plot){.title = "Gradient norm", .note = "before clipping", .series = {norm}, .n = 1});
  put_plot(r, (Plot){.title = "Learning rate", .series = {series(r, "learning rate", "learning-rate")}, .n = 1, .zero = true});
  put_plot(r, (Plot){.title = "Speed", .note = "tokens a second", .series = {speed}, .n = 1, .zero = true});
  put_plot(r, (Plot){.title = "Model flops", .note = "share of the measured peak of products", .series = {mfu}, .n = 1, .zero = true});
  put_plot(r, (Plot){.title = "Expert load", .note = "fullest expert over the mean, worst layer", .series = {load}, .n = 1});
  put_plot(r, (Plot){.title = "Router losses",
                     .note = "summed over layers, without coefficients",
                     .series = {series(r, "load balancing", "load_balancing_loss"), series(r, "z", "z_loss")},
                     .n = 2});
  put_plot(r, (Plot){.title = "Memory of a rank",
                     .note = "MiB on the device, as planned",
                     .series = {mebibytes(r, series(r, "device", "memory/device"))},
                     .n = 1,
                     .zero = true});
  fputs("</div>\n", r->f);
}

/* ---- router layers --------------------------------------------------------------------------------------------------------------- */
static int router_rows(const Report *r, const char *field, HeatRow **out) {
  int n = 0;
  *out = ARENA_NEW(r->a, HeatRow, 4096);
  for (int i = 0; i < 4096; i++) {
    PlotSeries layer = series(r, "", arena_printf(r->a, "router/%d/layer", i));
    PlotSeries v = series(r, "", arena_printf(r->a, "router/%d/%s", i, field));
    if (!v.n || !layer.n) break;
    (*out)[n++] = (HeatRow){arena_printf(r->a, "L%02d", (int)layer.p[0].v), v.p, v.n};
  }
  return n;
}

static void put_router(const Report *r) {
  HeatRow *violation, *entropy;
  int n = router_rows(r, "max_violation", &violation);
  router_rows(r, "entropy", &entropy);
  if (!n) return;
  double most = 0, least = 1;
  for (int i = 0; i < n; i++)
    for (int64_t k = 0; k < violation[i].n; k++) {
      most = fmax(most, violation[i].p[k].v);
      if (k < entropy[i].n) least = fmin(least, entropy[i].p[k].v);
    }
  fputs("<h2>Routers, layer by layer</h2><div class=\"grid2\">\n", r->f);
  heat_write(r->f, r->a, "Largest violation", "fullest expert over the mean, less 1", violation, n, 0, most > 0 ? most : 1, r->j->first,
             r->j->last);
  heat_write(r->f, r->a, "Entropy", "of the experts' shares; 1: all even", entropy, n, 1, least < 1 ? least : 0, r->j->first, r->j->last);
  fputs("</div>\n", r->f);
}

/* ---- table ----------------------------------------------------------------------------------------------------------------------- */
static void put_row(const Report *r, const char *path) {
  PlotSeries s = series(r, path, path);
  double low = INFINITY, high = -INFINITY;
  char text[4][32];
  if (!s.n) return;
  for (int64_t i = 0; i < s.n; i++) low = fmin(low, s.p[i].v), high = fmax(high, s.p[i].v);
  fputs("<tr><td>", r->f);
  html_text(r->f, path);
  fprintf(r->f, "</td><td>%lld</td><td>%s</td><td>%s</td><td>%s</td><td>%s</td></tr>\n", (long long)s.n,
          plot_number(s.p[0].v, text[0], sizeof text[0]), plot_number(s.p[s.n - 1].v, text[1], sizeof text[1]),
          plot_number(low, text[2], sizeof text[2]), plot_number(high, text[3], sizeof text[3]));
}

static void put_table(const Report *r) {
  static const char *const path[] = {"lm loss",
                                     "lm loss validation",
                                     "grad-norm",
                                     "learning-rate",
                                     "load_balancing_loss",
                                     "z_loss",
                                     "moe/load_max_over_mean",
                                     "throughput/tokens_per_sec",
                                     "tflops",
                                     "mfu",
                                     "tokens",
                                     "skipped",
                                     "consumed_samples"};
  fputs("<h2>Numbers</h2><div class=\"card "
        "scroll\"><table><tr><th>name</th><th>lines</th><th>first</th><th>last</th><th>least</th><th>most</th></tr>\n",
        r->f);
  for (size_t i = 0; i < sizeof path / sizeof *path; i++) put_row(r, path[i]);
  fputs("</table></div>\n", r->f);
}

/* ---- page ------------------------------------------------------------------------------------------------------------------------ */
static void find_saved(Report *r) {
  r->saved = ARENA_NEW(r->a, JsonlPoint, r->j->n + 1);
  for (int64_t i = 0; i < r->j->n; i++) {
    const JsonlField *f = &r->j->field[i];
    if (!strcmp(f->path, "event") && f->text && !strcmp(f->text, "checkpoint")) r->saved[r->n_saved++].iteration = f->iteration;
  }
}

static void put_page(const Report *r, const char *metrics) {
  fprintf(r->f,
          "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" "
          "content=\"width=device-width,initial-scale=1\">"
          "<title>Training report</title><style>\n%s</style></head><body><main>\n<h1>Training report</h1><p class=\"sub\">",
          style);
  html_text(r->f, metrics);
  fprintf(r->f, ": steps %lld to %lld%s</p>\n", (long long)r->j->first, (long long)r->j->last,
          r->n_saved ? "; dashed lines are checkpoints" : "");
  put_tiles(r);
  put_plots(r);
  put_router(r);
  put_table(r);
  fprintf(r->f, "<footer>Made by etalon report.</footer></main><div id=\"tip\"></div><script>\n%s</script></body></html>\n", script);
}

bool report_run(Arena *a, const char *metrics, const char *html, FILE *out, Err *e) {
  Jsonl j;
  TRY(path_apart("etalon report", html, "it", metrics, e));
  TRY(jsonl_read(&j, a, metrics, e));
  jsonl_say_left(&j, out);
  Report r = {.a = a, .j = &j, .f = fopen(html, "wb")};
  if (!r.f) return err_set(e, ERR_CONFIG, "%s: cannot be written: %s", html, strerror(errno));
  find_saved(&r);
  put_page(&r, metrics);
  bool whole = !ferror(r.f);
  if (fclose(r.f) != 0 || !whole) return err_set(e, ERR_CONFIG, "%s: cannot be written to its end: %s", html, strerror(errno));
  fprintf(out, "%s: %lld numbers of steps %lld to %lld\n", html, (long long)j.n, (long long)j.first, (long long)j.last);
  return true;
}
