/* Line plots and heat maps as SVG inside an HTML page, for report: no scripts needed to read them, no external resources. Colours and type are
 * the page's (CSS classes). */
#ifndef ETALON_PLOT_H
#define ETALON_PLOT_H
#include <stdio.h>
#include "train/jsonl.h"

enum { PLOT_SERIES = 4 };
typedef struct PlotSeries {
  const char *name;
  const JsonlPoint *p; int64_t n;
  bool smoothed;             /* the numbers themselves thin, means of their neighbours thick */
  bool dots;                 /* few points: marked one by one */
} PlotSeries;
typedef struct Plot {
  const char *title, *note;  /* note: a few words on what is shown, or NULL */
  PlotSeries series[PLOT_SERIES]; int n;
  bool zero;                 /* the axis begins at 0 */
  const JsonlPoint *mark; int64_t n_mark;      /* iterations that are marked (checkpoints) */
} Plot;

/* A card with the plot; first, last: iterations of the axis. Long series are drawn as the mean and the range of each of some hundred pieces.
 * Where all is positive and the largest is far above the smallest, the axis is logarithmic. Nothing when no series has a point. */
void plot_write(FILE *f, Arena *a, const Plot *p, int64_t first, int64_t last);

/* Rows from the bottom up; a cell is the mean of a row's points in its piece of the axis. low, high: ends of the colour scale. */
typedef struct HeatRow { const char *name; const JsonlPoint *p; int64_t n; } HeatRow;
void heat_write(FILE *f, Arena *a, const char *title, const char *note, const HeatRow *row, int n, double low, double high, int64_t first, int64_t last);

/* "12.3k", "4.1e-5": as short as three digits allow. Returns buf. */
const char *plot_number(double v, char *buf, size_t size);
/* Text for HTML: <, >, & and quotes escaped. */
void html_text(FILE *f, const char *text);
#endif
