/* What this binary is: its version, and the commit that it was built from. Printed by --version, kept in checkpoints and metrics. */
#ifndef ETALON_VERSION_H
#define ETALON_VERSION_H

const char *version_text(void);   /* "0.1.0 (1a2b3c4-dirty)" */
#endif
