// What copies of a session cost in memory: snapshots, forks, rewinds.
#pragma once

#include <vector>

#include "bench/session_figure.h"
#include "bench/session_maker.h"

namespace lintel::bench {

// Each repeat measures all of them, one after the other, `count` times each.
std::vector<SessionFigure> copy_costs(MadeSession& session, int repeats, int count);

}  // namespace lintel::bench
