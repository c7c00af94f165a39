#include "server/app/print_numerics.h"

#include <ostream>

#include "model/fastest_type.h"
#include "model/formats/model_files.h"
#include "model/numerics.h"
#include "model/transformer.h"
#include "server/models/model_repository.h"
#include "server/models/start_sources.h"

namespace lintel {

void print_numerics(const ModelOptions& options, std::ostream& out) {
  for (const ModelSource& source : start_sources(options, ModelRepository(options.repository))) {
    const ModelFiles files(source.directory);
    const auto model =
        load_as_planned(files, plan_to_load(files, options.weight_type, options.attention))
            .transformer;
    const Numerics numerics = numerics_of(*model);
    out << source.name << '\t' << source.version << '\t' << numerics.hex << '\t' << numerics.text
        << '\n';
  }
}

}  // namespace lintel
