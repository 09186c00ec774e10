/* Random tokens for the benches, u16: with moe.routing balanced the time of a step does not depend on them. Part of the rig. usage: test_random_tokens FILE N VOCAB */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/rng.h"

int main(int argc, char **argv) {
  if (argc != 4) return fputs("usage: test_random_tokens FILE N VOCAB\n", stderr), 2;
  int64_t n = atoll(argv[2]);
  double vocab = atof(argv[3]);
  FILE *f = fopen(argv[1], "wb");
  if (!f) return perror(argv[1]), 1;
  for (int64_t i = 0; i < n; i++) {
    uint16_t token = (uint16_t)(vocab * rng_uniform((RngKey){.seed = 1, .stream = 1, .purpose = RNG_TEST}, (uint64_t)i));
    fwrite(&token, sizeof token, 1, f);
  }
  return fclose(f) == 0 ? 0 : 1;
}
