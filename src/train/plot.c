#include "train/plot.h"

#include <math.h>
#include <string.h>

/* The drawing's own units; CSS scales it. */
enum { WIDTH = 560, HEIGHT = 240, LEFT = 52, RIGHT = 12, TOP = 10, BOTTOM = 26, MOST_POINTS = 300, MOST_CELLS = 96 };

typedef struct Axis1 {
  double low, high;
  bool log;
} Axis1;
typedef struct Frame {
  Axis1 x, y;
} Frame;

/* ---- text ------------------------------------------------------------------------------------------------------------------------ */
void html_text(FILE *f, const char *text) {
  static const struct {
    char c;
    const char *entity;
  } known[] = {{'<', "&lt;"}, {'>', "&gt;"}, {'&', "&amp;"}, {'"', "&quot;"}, {'\'', "&#39;"}};
  for (; *text; text++) {
    const char *entity = NULL;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
      if (known[i].c == *text) entity = known[i].entity;
    if (entity)
      fputs(entity, f);
    else
      fputc(*text, f);
  }
}

const char *plot_number(double v, char *buf, size_t size) {
  static const struct {
    double at;
    const char *suffix;
  } unit[] = {{1e12, "T"}, {1e9, "G"}, {1e6, "M"}, {1e4, "k"}};
  double a = fabs(v);
  for (size_t i = 0; i < sizeof unit / sizeof *unit; i++)
    if (a >= unit[i].at && a < 1e15) return snprintf(buf, size, "%.3g%s", v / (i == 3 ? 1e3 : unit[i].at), unit[i].suffix), buf;
  if (a == 0 || (a >= 1e-3 && a < 1e15)) return snprintf(buf, size, a >= 1e3 ? "%.0f" : "%.4g", v), buf;
  int power = (int)floor(log10(a));
  snprintf(buf, size, "%.3ge%d", v / pow(10, power), power);
  return buf;
}

/* ---- axes ------------------------------------------------------------------------------------------------------------------------ */
static double place(const Axis1 *a, double v) {
  if (a->log) return (log(v) - log(a->low)) / (log(a->high) - log(a->low));
  return (v - a->low) / (a->high - a->low);
}
static double to_x(const Frame *f, double v) { return LEFT + place(&f->x, v) * (WIDTH - LEFT - RIGHT); }
static double to_y(const Frame *f, double v) { return HEIGHT - BOTTOM - place(&f->y, v) * (HEIGHT - TOP - BOTTOM); }

/* 1, 2 or 5 times a power of ten, so that about n steps fit. */
static double nice_step(double range, int n) {
  double raw = range / n, power = pow(10, floor(log10(raw))), m = raw / power;
  return power * (m <= 1 ? 1 : m <= 2 ? 2 : m <= 5 ? 5 : 10);
}

static Axis1 axis_of(double low, double high, bool zero) {
  Axis1 a = {low, high, false};
  if (low > 0 && high / low > 30) return (Axis1){low / 1.15, high * 1.15, true};
  if (zero && low > 0) a.low = 0;
  double pad = (a.high - a.low) * 0.06;
  if (a.high <= a.low) pad = fabs(a.high) > 0 ? fabs(a.high) * 0.1 : 1;
  a.high += pad;
  if (a.low != 0) a.low -= pad;
  return a;
}

static Frame frame_of(const Plot *p, int64_t first, int64_t last) {
  double low = INFINITY, high = -INFINITY;
  for (int s = 0; s < p->n; s++)
    for (int64_t i = 0; i < p->series[s].n; i++) {
      low = fmin(low, p->series[s].p[i].v);
      high = fmax(high, p->series[s].p[i].v);
    }
  return (Frame){{(double)first, (double)(last > first ? last : first + 1), false}, axis_of(low, high, p->zero)};
}

static void draw_tick_y(FILE *f, const Frame *m, double v) {
  char text[32];
  if (v < m->y.low || v > m->y.high) return;
  fprintf(f,
          "<line class=\"grid\" x1=\"%d\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\"/><text class=\"tick\" x=\"%d\" y=\"%.1f\" "
          "text-anchor=\"end\">%s</text>\n",
          LEFT, WIDTH - RIGHT, to_y(m, v), to_y(m, v), LEFT - 6, to_y(m, v) + 3.5, plot_number(v, text, sizeof text));
}

static void draw_ticks_y(FILE *f, const Frame *m) {
  if (!m->y.log) {
    double step = nice_step(m->y.high - m->y.low, 5);
    for (double v = ceil(m->y.low / step) * step; v <= m->y.high; v += step) draw_tick_y(f, m, fabs(v) < step * 1e-6 ? 0 : v);
    return;
  }
  int decades = (int)ceil(log10(m->y.high / m->y.low)), every = decades / 6 + 1;
  for (int p = (int)floor(log10(m->y.low)); p <= (int)ceil(log10(m->y.high)); p += every)
    for (int k = 1; k<10; k += decades> 3 ? 9 : 1)
      if (decades > 3 || k == 1 || k == 2 || k == 5) draw_tick_y(f, m, k * pow(10, p));
}

static void draw_ticks_x(FILE *f, const Frame *m) {
  char text[32];
  double step = fmax(nice_step(m->x.high - m->x.low, 6), 1);
  for (double v = ceil(m->x.low / step) * step; v <= m->x.high; v += step)
    fprintf(f, "<text class=\"tick\" x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%s</text>\n", to_x(m, v), HEIGHT - 8,
            plot_number(v, text, sizeof text));
  fprintf(f, "<line class=\"axis\" x1=\"%d\" x2=\"%d\" y1=\"%d\" y2=\"%d\"/>\n", LEFT, WIDTH - RIGHT, HEIGHT - BOTTOM, HEIGHT - BOTTOM);
}

/* ---- lines ----------------------------------------------------------------------------------------------------------------------- */
/* A piece of a series: mean place and value, and the range of values. */
typedef struct Piece {
  double x, v, low, high;
} Piece;

static int cut_pieces(Arena *a, const PlotSeries *s, Piece **out) {
  int64_t n = s->n < MOST_POINTS ? s->n : MOST_POINTS;
  *out = ARENA_NEW(a, Piece, n + 1);
  for (int64_t k = 0; k < n; k++) {
    int64_t from = k * s->n / n, to = (k + 1) * s->n / n;
    Piece *p = &(*out)[k];
    *p = (Piece){.low = INFINITY, .high = -INFINITY};
    for (int64_t i = from; i < to; i++) {
      p->x += (double)s->p[i].iteration / (double)(to - from);
      p->v += s->p[i].v / (double)(to - from);
      p->low = fmin(p->low, s->p[i].v), p->high = fmax(p->high, s->p[i].v);
    }
  }
  return (int)n;
}

static void draw_line(FILE *f, const Frame *m, const Piece *p, int n, int color, const char *class) {
  fprintf(f, "<polyline class=\"%s c%d\" points=\"", class, color);
  for (int i = 0; i < n; i++) fprintf(f, "%.1f,%.1f ", to_x(m, p[i].x), to_y(m, p[i].v));
  fputs("\"/>\n", f);
}

static void draw_range(FILE *f, const Frame *m, const Piece *p, int n, int color) {
  fprintf(f, "<polygon class=\"range f%d\" points=\"", color);
  for (int i = 0; i < n; i++) fprintf(f, "%.1f,%.1f ", to_x(m, p[i].x), to_y(m, p[i].high));
  for (int i = n - 1; i >= 0; i--) fprintf(f, "%.1f,%.1f ", to_x(m, p[i].x), to_y(m, p[i].low));
  fputs("\"/>\n", f);
}

/* Means over a window around each point, narrower towards the ends, so that the line neither lags nor leaves the data. */
static void smooth(Arena *a, Piece *p, int n) {
  double *sum = ARENA_NEW(a, double, n + 1);
  for (int i = 0; i < n; i++) sum[i + 1] = sum[i] + p[i].v;
  for (int i = 0; i < n; i++) {
    int half = n / 40 + 1;
    if (half > i) half = i;
    if (half > n - 1 - i) half = n - 1 - i;
    p[i].v = (sum[i + half + 1] - sum[i - half]) / (2 * half + 1);
  }
}

static void draw_series(FILE *f, Arena *a, const Frame *m, const PlotSeries *s, int color) {
  Piece *p;
  int n = cut_pieces(a, s, &p);
  bool smoothed = s->smoothed && n > 20;
  if (s->n > n) draw_range(f, m, p, n, color);
  draw_line(f, m, p, n, color, smoothed ? "line faint" : "line");
  for (int i = 0; i < n && (s->dots || n == 1) && n <= 60; i++)
    fprintf(f, "<circle class=\"f%d\" cx=\"%.1f\" cy=\"%.1f\" r=\"2.6\"/>\n", color, to_x(m, p[i].x), to_y(m, p[i].v));
  if (!smoothed) return;
  smooth(a, p, n);
  draw_line(f, m, p, n, color, "line");
}

/* What the page's script shows beside the pointer. */
static void put_data(FILE *f, Arena *a, const Plot *p) {
  fputs(" data-series=\"[", f);
  for (int s = 0; s < p->n; s++) {
    Piece *piece;
    int n = cut_pieces(a, &p->series[s], &piece);
    fprintf(f, "%s[&quot;", s ? "," : "");
    html_text(f, p->series[s].name);
    fputs("&quot;", f);
    for (int i = 0; i < n; i++) fprintf(f, ",%.6g,%.6g", piece[i].x, piece[i].v);
    fputc(']', f);
  }
  fputs("]\"", f);
}

static void put_caption(FILE *f, const char *title, const char *note) {
  fputs("<figcaption><b>", f);
  html_text(f, title);
  fputs("</b>", f);
  if (!note) return;
  fputs(" <span>", f);
  html_text(f, note);
  fputs("</span>", f);
}

static void put_legend(FILE *f, const Plot *p) {
  char text[32];
  fputs("<span class=\"legend\">", f);
  for (int s = 0; s < p->n; s++) {
    fprintf(f, "<i class=\"f%d\"></i>", s);
    if (p->n > 1) html_text(f, p->series[s].name), fputc(' ', f);
    fprintf(f, "<b>%s</b> ", plot_number(p->series[s].p[p->series[s].n - 1].v, text, sizeof text));
  }
  fputs("</span>", f);
}

void plot_write(FILE *f, Arena *a, const Plot *given, int64_t first, int64_t last) {
  Plot p = *given;
  p.n = 0;
  for (int s = 0; s < given->n; s++)
    if (given->series[s].n > 0) p.series[p.n++] = given->series[s];
  if (!p.n) return;
  ArenaMark mark = arena_mark(a);
  Frame m = frame_of(&p, first, last);
  fputs("<figure class=\"card\">", f);
  put_caption(f, p.title, m.y.log ? "logarithmic" : p.note);
  put_legend(f, &p);
  fprintf(f,
          "</figcaption>\n<svg class=\"plot\" viewBox=\"0 0 %d %d\" role=\"img\" data-first=\"%lld\" data-last=\"%lld\" data-left=\"%d\" "
          "data-right=\"%d\"",
          WIDTH, HEIGHT, (long long)m.x.low, (long long)m.x.high, LEFT, WIDTH - RIGHT);
  put_data(f, a, &p);
  fputs(">\n", f);
  draw_ticks_y(f, &m);
  draw_ticks_x(f, &m);
  for (int64_t i = 0; i < p.n_mark && p.n_mark <= 100; i++)
    fprintf(f, "<line class=\"mark\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%d\" y2=\"%d\"/>\n", to_x(&m, (double)p.mark[i].iteration),
            to_x(&m, (double)p.mark[i].iteration), TOP, HEIGHT - BOTTOM);
  for (int s = 0; s < p.n; s++) draw_series(f, a, &m, &p.series[s], s);
  fprintf(f, "<line class=\"cursor\" x1=\"0\" x2=\"0\" y1=\"%d\" y2=\"%d\"/></svg></figure>\n", TOP, HEIGHT - BOTTOM);
  arena_release(a, mark);
}

/* ---- heat maps ------------------------------------------------------------------------------------------------------------------- */
/* Mean of the points from `from` to `to`; NAN: none. */
static double mean_between(const HeatRow *r, double from, double to) {
  double sum = 0;
  int64_t n = 0;
  for (int64_t i = 0; i < r->n; i++)
    if ((double)r->p[i].iteration >= from && (double)r->p[i].iteration < to) sum += r->p[i].v, n++;
  return n ? sum / (double)n : NAN;
}

static int cells_of(const HeatRow *row, int n) {
  int64_t most = 1;
  for (int i = 0; i < n; i++) most = row[i].n > most ? row[i].n : most;
  return (int)(most < MOST_CELLS ? most : MOST_CELLS);
}

void heat_write(FILE *f, Arena *a, const char *title, const char *note, const HeatRow *row, int n, double low, double high, int64_t first,
                int64_t last) {
  (void)a;
  if (!n) return;
  int cells = cells_of(row, n), height = HEIGHT - TOP - BOTTOM;
  Frame m = {{(double)first, (double)(last > first ? last : first + 1), false}, {0, n, false}};
  double span = (m.x.high - m.x.low) / cells, w = (double)(WIDTH - LEFT - RIGHT) / cells, h = (double)height / n;
  char text[2][32];
  fputs("<figure class=\"card\">", f);
  put_caption(f, title, note);
  fprintf(f, "<span class=\"legend\">%s <i class=\"scale\"></i> %s</span></figcaption>\n<svg viewBox=\"0 0 %d %d\" role=\"img\">\n",
          plot_number(low, text[0], sizeof text[0]), plot_number(high, text[1], sizeof text[1]), WIDTH, HEIGHT);
  for (int i = 0; i < n; i++) {
    double y = HEIGHT - BOTTOM - (i + 1) * h;
    if (n <= 16 || i % (n / 12 + 1) == 0)
      fprintf(f, "<text class=\"tick\" x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%s</text>\n", LEFT - 6, y + h / 2 + 3.5, row[i].name);
    for (int k = 0; k < cells; k++) {
      double v = mean_between(&row[i], m.x.low + k * span, m.x.low + (k + 1 == cells ? k + 2 : k + 1) * span);
      if (isnan(v)) continue;
      double share = fmin(fmax((v - low) / (high - low), 0), 1);
      fprintf(
          f,
          "<rect class=\"heat\" x=\"%.2f\" y=\"%.2f\" width=\"%.2f\" height=\"%.2f\" fill-opacity=\"%.3f\"><title>%s: %s</title></rect>\n",
          LEFT + k * w, y, w + 0.3, h > 4 ? h - 1 : h, 0.04 + 0.96 * share, row[i].name, plot_number(v, text[0], sizeof text[0]));
    }
  }
  draw_ticks_x(f, &m);
  fputs("</svg></figure>\n", f);
}
