// SPDX-License-Identifier: Apache-2.0
#include <sys/wait.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "model/formats/safetensors.h"
#include "model/lora/adapter.h"
#include "model/transformer.h"
#include "tests/support/catch.h"
#include "tests/support/random_model.h"
#include "tests/support/temporary_directory.h"
#include "tools/convert/convert_model.h"

namespace lintel {
namespace {

namespace fs = std::filesystem;
using testing::TinyModel;

std::string text_of(const fs::path& file) {
  std::ostringstream text;
  text << std::ifstream(file, std::ios::binary).rdbuf();
  return text.str();
}

std::vector<float> outputs(const fs::path& directory, WeightType type,
                           std::shared_ptr<const Adapter> adapter = nullptr) {
  const auto model = Transformer::load(directory, {.weight_type = type});
  Workspace workspace = model->new_workspace(1);
  SequenceState sequence = model->new_sequence(std::move(adapter));
  std::vector<float> all;
  for (std::int32_t token = 0; token < 8; ++token) {
    const BatchRow row{token, &sequence, /*wants_output=*/true};
    const auto output = model->step({&row, 1}, workspace).row(0);
    all.insert(all.end(), output.begin(), output.end());
  }
  return all;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

struct Fixture {
  Fixture() { write_random_model(from, testing::tiny_config(TinyModel::kBytes), 3); }
  testing::TemporaryDirectory directory;
  const fs::path from = directory.path() / "from";
  const fs::path to = directory.path() / "to";

  std::size_t entries() const {
    return static_cast<std::size_t>(
        std::distance(fs::directory_iterator(directory.path()), fs::directory_iterator()));
  }

  struct Ended {
    int code = 0;
    std::string text;  // both outputs
  };
  Ended run(const std::string& arguments) const {
    const std::string command = "cd '" + directory.path().string() +
                                "' && " LINTEL_CONVERT_BINARY " " + arguments + " 2>&1";
    FILE* const pipe = popen(command.c_str(), "r");
    REQUIRE(pipe != nullptr);
    Ended ended;
    char buffer[512];
    while (const std::size_t n = std::fread(buffer, 1, sizeof(buffer), pipe)) {
      ended.text.append(buffer, n);
    }
    ended.code = WEXITSTATUS(pclose(pipe));
    return ended;
  }
};

TEST_CASE("a model in bf16 gives the bits of the original served in bf16") {
  Fixture f;
  convert_model(f.from, f.to, WeightType::kBf16);
  CHECK(text_of(f.to / "config.json") == text_of(f.from / "config.json"));
  CHECK(fs::file_size(f.to / "model.safetensors") < fs::file_size(f.from / "model.safetensors"));
  CHECK(same_bits(outputs(f.to, WeightType::kBf16), outputs(f.from, WeightType::kBf16)));
  CHECK_FALSE(same_bits(outputs(f.to, WeightType::kF32), outputs(f.from, WeightType::kF32)));
  const SafetensorsFile file(f.to / "model.safetensors");
  CHECK(file.tensor("transformer.layers.0.linear1.weight").type == TensorType::kBf16);
  for (const char* const name :
       {"predictor.weight", "value_embedding.weight", "transformer.layers.0.linear1.bias",
        "transformer.layers.0.norm1.weight"}) {
    CHECK(file.tensor(name).type == TensorType::kF32);
  }
}

TEST_CASE("a model in f32 gives the bits of the original of any weight type") {
  Fixture f;
  convert_model(f.from, f.to, WeightType::kF32);
  CHECK((text_of(f.to / "model.safetensors") == text_of(f.from / "model.safetensors")));
  const fs::path narrow = f.directory.path() / "narrow";
  const fs::path wide = f.directory.path() / "wide";
  convert_model(f.from, narrow, WeightType::kBf16);
  convert_model(narrow, wide, WeightType::kF32);
  CHECK(same_bits(outputs(wide, WeightType::kF32), outputs(narrow, WeightType::kF32)));
}

TEST_CASE("a model that is narrow already does not grow") {
  Fixture f;
  const ModelConfig config = testing::tiny_config(TinyModel::kBytes);
  for (const TensorType narrow : {TensorType::kBf16, TensorType::kF16}) {
    save_weights(f.from / "model.safetensors", config, random_weights(config, 3, 1.0f),
                 [&](const TensorSpec&) { return narrow; });
    fs::remove_all(f.to);
    convert_model(f.from, f.to, WeightType::kBf16);
    // But for the names of the types in the header.
    CHECK(fs::file_size(f.to / "model.safetensors") <
          fs::file_size(f.from / "model.safetensors") + 500);
    const SafetensorsFile file(f.to / "model.safetensors");
    CHECK(file.tensor("transformer.layers.0.linear1.weight").type == TensorType::kBf16);
    CHECK(file.tensor("value_embedding.weight").type == narrow);
    CHECK(same_bits(outputs(f.to, WeightType::kBf16), outputs(f.from, WeightType::kBf16)));
  }
}

TEST_CASE("a model with an adapter merged agrees with the adapter applied to the model") {
  Fixture f;
  const ModelConfig config = testing::tiny_config(TinyModel::kBytes);
  const fs::path adapter = f.directory.path() / "adapter";
  write_random_adapter(adapter, config, {.rank = 5});
  convert_model(f.from, f.to, WeightType::kF32, adapter);
  const std::vector<float> merged = outputs(f.to, WeightType::kF32);
  const std::vector<float> beside =
      outputs(f.from, WeightType::kF32, Adapter::load(AdapterFiles(adapter, config)));
  const std::vector<float> base = outputs(f.from, WeightType::kF32);
  const auto largest_difference = [](const std::vector<float>& a, const std::vector<float>& b) {
    double largest = 0.0;
    for (std::size_t i = 0; i < a.size(); ++i) {
      largest = std::max(largest, std::abs(double{a[i]} - b[i]));
    }
    return largest;
  };
  CHECK(largest_difference(merged, beside) <= 1e-5);
  CHECK(largest_difference(merged, base) > 0.1);
  const auto fingerprint = [](const fs::path& directory) {
    return Transformer::load(directory, {})->fingerprint();
  };
  CHECK(fingerprint(f.to) != fingerprint(f.from));

  // Weights that bf16 does not round keep their merged values.
  const fs::path narrow = f.directory.path() / "narrow";
  save_weights(f.from / "model.safetensors", config, random_weights(config, 3),
               [](const TensorSpec&) { return TensorType::kBf16; });
  convert_model(f.from, narrow, WeightType::kBf16, adapter);
  const SafetensorsFile file(narrow / "model.safetensors");
  CHECK(file.tensor("transformer.layers.0.linear1.weight").type == TensorType::kBf16);
  CHECK(file.tensor("predictor.weight").type == TensorType::kF32);
  CHECK(file.tensor("value_embedding.weight").type == TensorType::kF32);
  CHECK(file.tensor("predictor.bias").type == TensorType::kBf16);
}

TEST_CASE("an adapter that does not fit the model leaves no files") {
  Fixture f;
  const fs::path adapter = f.directory.path() / "adapter";
  ModelConfig other = testing::tiny_config(TinyModel::kBytes);
  other.d_ff = 40;
  write_random_adapter(adapter, other);
  CHECK_THROWS_WITH(convert_model(f.from, f.to, WeightType::kF32, adapter),
                    Catch::Contains("linear1.lora_B.weight") && Catch::Contains("found shape"));
  CHECK(f.entries() == 2);
}

TEST_CASE("a failed conversion leaves no files") {
  Fixture f;
  SECTION("int8 has no place in the format") {
    CHECK_THROWS_WITH(convert_model(f.from, f.to, WeightType::kInt8),
                      Catch::Contains("I8 tensors") && Catch::Contains("scales"));
  }
  SECTION("there is something at the destination") {
    fs::create_directory(f.to);
    CHECK_THROWS_WITH(convert_model(f.from, f.to, WeightType::kBf16), Catch::Contains("exists"));
    CHECK(fs::is_empty(f.to));
    fs::remove(f.to);
  }
  SECTION("the weights are not those of the config") {
    std::ofstream(f.from / "model.safetensors") << "not a model";
    CHECK_THROWS_AS(convert_model(f.from, f.to, WeightType::kBf16), ModelError);
  }
  SECTION("the destination cannot be made") {
    CHECK_THROWS_WITH(convert_model(f.from, f.directory.path() / "no" / "such", WeightType::kF32),
                      Catch::Contains("no/such: cannot be made: "));
  }
  CHECK(f.entries() == 1);
}

TEST_CASE("the program reports success and failure by its exit code") {
  Fixture f;
  CHECK(f.run("--help").code == 0);
  CHECK(f.run("--help").text.find("--weight-type") != std::string::npos);
  // An example that is too long for a line is broken as a shell takes it.
  CHECK(f.run("--help").text.find("--merge-adapter \\\n      my-model/adapters/tuned") !=
        std::string::npos);
  std::istringstream help(f.run("--help").text);
  for (std::string line; std::getline(help, line);) CHECK(line.size() <= 80);
  CHECK(f.run("from to --weight-type bf16").code == 0);
  CHECK(fs::exists(f.to / "model.safetensors"));
  CHECK(f.run("from also/ --weight-type f32").code == 0);
  write_random_adapter(f.directory.path() / "adapter", testing::tiny_config(TinyModel::kBytes));
  CHECK(f.run("from merged --weight-type f32 --merge-adapter adapter").code == 0);
  CHECK(
      f.run("from other --weight-type f32 --merge-adapter none").text.find("adapter_config.json") !=
      std::string::npos);
  const auto again = f.run("from to --weight-type bf16");
  CHECK(again.code == 1);
  CHECK(again.text.find("exists") != std::string::npos);
  const auto int8 = f.run("from other --weight-type int8");
  CHECK(int8.code == 1);
  CHECK(int8.text.find("I8") != std::string::npos);
  CHECK(f.run("from other").code == 2);
  CHECK(f.run("from other --weight-type fp4").code == 2);
  CHECK(f.run("from").code == 2);
}

TEST_CASE("each failure of the program is one line that names the file and the reason") {
  Fixture f;
  const auto copy = [&](const std::string& name) {
    fs::copy(f.from, f.directory.path() / name);
    return f.directory.path() / name;
  };
  fs::create_directory(f.directory.path() / "empty");
  fs::create_directory(f.directory.path() / "there");
  fs::remove(copy("bare") / "model.safetensors");
  fs::resize_file(copy("short") / "model.safetensors", 5);
  fs::resize_file(copy("cut") / "model.safetensors",
                  fs::file_size(f.from / "model.safetensors") - 1);
  std::ofstream(copy("broken") / "config.json") << "{";
  std::ofstream(copy("other") / "config.json")
      << R"({"architectures": ["OtherForCausalLM"], "model_type": "other"})";

  const struct {
    const char* arguments;
    const char* message;
  } kCases[] = {
      {"nowhere to", "nowhere: no such directory"},
      {"from/config.json to", "from/config.json/config.json: cannot open: Not a directory"},
      {"empty to", "empty/config.json: cannot open: No such file or directory"},
      {"bare to", "bare/model.safetensors: cannot open: No such file or directory"},
      {"short to", "short/model.safetensors: "},
      {"cut to", "cut/model.safetensors: tensor "},
      {"broken to", "broken/config.json: not JSON: "},
      {"other to", "other/config.json: key \"model_type\": found \"other\", expected one of "},
      {"from there", "there: exists already"},
      {"from from/config.json", "from/config.json: exists already"},
      {"from no/such", "no/such: cannot be made: No such file or directory"},
  };
  for (const auto& [arguments, message] : kCases) {
    INFO(arguments);
    const auto ended = f.run(std::string(arguments) + " --weight-type f32");
    CHECK(ended.code == 1);
    CHECK_THAT(ended.text, Catch::StartsWith(std::string("lintel-convert: ") + message));
    CHECK(std::count(ended.text.begin(), ended.text.end(), '\n') == 1);
    CHECK(!fs::exists(f.to));
  }
}

}  // namespace
}  // namespace lintel
