/* Steps of a ring: messages to the next member that are under way while the rank computes. */
#include "comm/comm_mpi.h"

void comm_ring_begin(World *w, AxisSet axes, const Hop *hop, int n) {
  Channel c = channel_open(w, axes);
  if (c.g->n == 1) return;
  CHECK(!w->n_recv && !w->n_send, "a step of a ring begins with %d messages under way", w->n_recv + w->n_send);
  size_t most = w->max_message;
  for (int i = 0; i < n; i++)
    for (size_t at = 0; at < hop[i].recv_bytes; at += most)
      wave_recv(&c, (char *)hop[i].recv + at, hop[i].recv_bytes - at < most ? hop[i].recv_bytes - at : most, channel_from(&c, 1));
  for (int i = 0; i < n; i++)
    for (size_t at = 0; at < hop[i].send_bytes; at += most)
      wave_send(&c, (const char *)hop[i].send + at, hop[i].send_bytes - at < most ? hop[i].send_bytes - at : most, channel_to(&c, 1));
}

void comm_ring_end(World *w, AxisSet axes) {
  Channel c = channel_open(w, axes);
  if (w->n_recv || w->n_send) wave_wait(&c);
}
