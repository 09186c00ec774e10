#include "train/version.h"

#include "version_build.h" /* made by every build: ETALON_VERSION, ETALON_COMMIT */

const char *version_text(void) { return ETALON_VERSION " (" ETALON_COMMIT ")"; }
