#include <tern/version.h>

const char* tern::version() noexcept { return TERN_VERSION_STRING; }
