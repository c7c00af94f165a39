// The response of ModelService.Statistics.
#pragma once

#include "lintel/v1/model.pb.h"
#include "server/api/service_context.h"

namespace lintel {

// All but the uptime. The same counts as those of the metrics; takes no lock that a step waits for.
void write_statistics(const ServiceContext& context, v1::StatisticsResponse& wire);

}  // namespace lintel
