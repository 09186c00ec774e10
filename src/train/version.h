/* What this binary is; set by CMake. */
#ifndef ETALON_VERSION_H
#define ETALON_VERSION_H
#ifndef ETALON_VERSION
#define ETALON_VERSION "unknown"
#endif
#ifndef ETALON_COMMIT
#define ETALON_COMMIT "unknown"
#endif
#endif
