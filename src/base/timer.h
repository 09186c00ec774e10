/* Wall clock. Never used for a decision that changes a result. */
#ifndef ETALON_TIMER_H
#define ETALON_TIMER_H
double timer_now(void);      /* seconds, monotonic */
double timer_unix(void);     /* seconds since 1970 */
#endif
