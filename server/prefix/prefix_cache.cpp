#include "server/prefix/prefix_cache.h"
