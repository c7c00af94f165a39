#include "server/durable/durable_sessions.h"
