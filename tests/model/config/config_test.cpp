// SPDX-License-Identifier: Apache-2.0
// config.json: what is read, and how every defect is refused.
#include "model/config/config.h"

#include <fstream>
#include <nlohmann/json.hpp>

#include "model/config/attention_spec.h"
#include "tests/support/catch.h"
#include "tests/support/random_model.h"
#include "tests/support/temporary_directory.h"

namespace lintel {
namespace {

using Catch::Matchers::Contains;
using nlohmann::json;
using testing::tiny_config;
using testing::TinyModel;

json valid(TinyModel kind = TinyModel::kImage) { return json::parse(to_json(tiny_config(kind))); }

std::string error_of(const std::string& text) {
  try {
    parse_config(text, "dir/config.json");
  } catch (const ModelError& error) {
    return error.what();
  }
  return "accepted";
}

// The change as a JSON pointer and a value; "remove" and "-" for a key that is taken away.
std::string error_after(json config, const std::string& pointer, const json& value) {
  config[json::json_pointer(pointer)] = value;
  return error_of(config.dump());
}

std::string error_without(json config, const std::string& pointer) {
  const json::json_pointer p(pointer);
  config[p.parent_pointer()].erase(p.back());
  return error_of(config.dump());
}

const char* const kLsh =
    R"({"type":"lsh","rounds":4,"bits":8,"chunk_size":32,"mask_self":false,"combine":"logsumexp"})";

}  // namespace

TEST_CASE("a config that is written reads back as itself") {
  for (const TinyModel kind : {TinyModel::kImage, TinyModel::kBytes, TinyModel::kTokens}) {
    const ModelConfig config = tiny_config(kind);
    const std::string text = to_json(config);
    CHECK(to_json(parse_config(text, "f")) == text);
  }
  ModelConfig mixed = tiny_config(TinyModel::kBytes);
  mixed.attention[0] = attention_of("softmax:scale=0.1");
  mixed.attention[1] =
      attention_of("lsh:rounds=2,bits=4,chunk_size=16,mask_self=false,combine=logsumexp");
  mixed.layer_norm_eps = 0.1 + 0.2;  // needs all 17 digits
  const ModelConfig again = parse_config(to_json(mixed), "f");
  CHECK(again.attention == mixed.attention);
  CHECK(again.layer_norm_eps == mixed.layer_norm_eps);
}

TEST_CASE("every key of the reference configs is read") {
  const std::filesystem::path golden = LINTEL_TEST_DATA "/golden";
  const ModelConfig linear = load_config(golden / "linear-small/config.json");
  CHECK(linear.vocab_size == 256);
  CHECK(linear.max_length == 783);
  CHECK(linear.max_tokens() == 784);
  CHECK(linear.d_model == 64);
  CHECK(linear.n_layers == 2);
  CHECK(linear.n_heads == 4);
  CHECK(linear.d_head == 16);
  CHECK(linear.d_ff == 256);
  CHECK(linear.final_norm);
  CHECK(linear.layer_norm_eps == 1e-5);
  CHECK(linear.mixtures == 10);
  CHECK(linear.num_outputs() == 30);
  CHECK(linear.image.num_tokens() == 784);
  CHECK(linear.attention == std::vector<AttentionConfig>(2, attention_of("linear:eps=1e-6")));

  const ModelConfig gelu = load_config(golden / "linear-gelu-nofinalnorm-small/config.json");
  CHECK(gelu.activation == Activation::kGelu);
  CHECK_FALSE(gelu.final_norm);
  CHECK(gelu.head == HeadKind::kCategorical);
  CHECK(gelu.modality == ModalityKind::kBytes);

  CHECK(load_config(golden / "softmax-small/config.json").attention[1] == attention_of("softmax"));
  const AttentionConfig lsh = load_config(golden / "lsh4-small/config.json").attention[1];
  CHECK(lsh == attention_of("lsh:rounds=4,bits=8,chunk_size=32"));
}

TEST_CASE("a sequence is as long as its image or its positions and one more token") {
  ModelConfig config = tiny_config(TinyModel::kImage);
  REQUIRE(config.image.num_tokens() == 30);
  for (const std::int64_t table : {0, 29, 100}) {
    config.max_length = table;
    CHECK(config.max_tokens() == 30);
  }
  config.max_length = 12;
  CHECK(config.max_tokens() == 13);
  config = tiny_config(TinyModel::kBytes);
  CHECK(config.max_tokens() == config.max_length + 1);
  config.max_length = 0;
  CHECK(config.max_tokens() == 0);
}

TEST_CASE("keys with a documented default may be left out") {
  json config = valid();
  config["attention"] = {{"type", "linear"}};
  const AttentionConfig linear = parse_config(config.dump(), "f").attention[0];
  CHECK(linear.number("eps") == 1e-6);
  config["attention"] = {{"type", "softmax"}};
  CHECK(parse_config(config.dump(), "f").attention[0].number("scale", 0.25) == 0.25);
  config["attention"] = {{"type", "softmax"}, {"scale", nullptr}};
  CHECK(parse_config(config.dump(), "f").attention[0].number("scale", 0.25) == 0.25);
  config["attention"] = {{"type", "lsh"}, {"rounds", 1}, {"bits", 8}, {"chunk_size", 32}};
  const AttentionConfig lsh = parse_config(config.dump(), "f").attention[0];
  CHECK(lsh.boolean("mask_self"));
  CHECK(lsh.choice("combine") == "mean");
}

TEST_CASE("a list of attentions gives each layer its own") {
  json config = valid();
  config["attention"] = json::array({{{"type", "linear"}, {"eps", 0.5}}, json::parse(kLsh)});
  const ModelConfig parsed = parse_config(config.dump(), "f");
  CHECK(parsed.attention[0].number("eps") == 0.5);
  CHECK(parsed.attention[1].type() == std::string("lsh"));
  CHECK(parsed.attention[1].choice("combine") == "logsumexp");
  CHECK_FALSE(parsed.attention[1].boolean("mask_self"));
}

TEST_CASE("unknown keys are refused by name at every level") {
  const json config = valid();
  CHECK_THAT(error_after(config, "/n_layer", 2), Contains("dir/config.json") &&
                                                     Contains("unknown key \"n_layer\"") &&
                                                     Contains("n_layers"));
  CHECK_THAT(error_after(config, "/attention/epsilon", 1),
             Contains("unknown key \"attention.epsilon\"") && Contains("linear"));
  CHECK_THAT(error_after(config, "/attention/scale", 1), Contains("\"attention.scale\""));
  CHECK_THAT(error_after(config, "/head/mixture", 1), Contains("unknown key \"head.mixture\""));
  CHECK_THAT(error_after(config, "/modality/depth", 1), Contains("\"modality.depth\""));
  CHECK_THAT(error_after(config, "/modality/type", "bytes"), Contains("unknown key \"modality."));
  CHECK_THAT(error_after(config, "/head/type", "categorical"), Contains("\"head.mixtures\""));
  json list = config;
  list["attention"] = json::array({{{"type", "linear"}}, {{"type", "linear"}, {"bits", 3}}});
  CHECK_THAT(error_of(list.dump()), Contains("unknown key \"attention[1].bits\""));
}

TEST_CASE("every required key is missed by name") {
  const json config = valid();
  for (const auto& [key, unused] : config.items()) {
    CHECK_THAT(error_without(config, "/" + key),
               Contains("key \"" + key + "\": found nothing, expected "));
  }
  for (const char* pointer :
       {"/attention/type", "/head/type", "/head/mixtures", "/modality/type", "/modality/height",
        "/modality/width", "/modality/channels", "/modality/start_token"}) {
    CHECK_THAT(error_without(config, pointer), Contains("found nothing, expected "));
  }
  json lsh = config;
  lsh["attention"] = json::parse(kLsh);
  CHECK(error_of(lsh.dump()) == "accepted");
  for (const char* pointer : {"/attention/rounds", "/attention/bits", "/attention/chunk_size"}) {
    CHECK_THAT(error_without(lsh, pointer), Contains("found nothing, expected "));
  }
}

TEST_CASE("a value of the wrong type is refused with key and both values") {
  const json config = valid();
  for (const char* key : {"format_version", "vocab_size", "max_length", "d_model", "n_layers",
                          "n_heads", "d_head", "d_ff"}) {
    for (const json& wrong : {json("16"), json(16.0), json(true), json(nullptr), json::array(),
                              json::object(), json(-1), json(UINT64_MAX)}) {
      CHECK_THAT(error_after(config, std::string("/") + key, wrong),
                 Contains("dir/config.json: key \"" + std::string(key) + "\": found " +
                          wrong.dump() + ", expected a whole number from "));
    }
  }
  for (const char* key : {"activation", "norm_placement", "embedding", "position_encoding"}) {
    for (const json& wrong : {json("Relu"), json(""), json(1), json(nullptr)}) {
      CHECK_THAT(error_after(config, std::string("/") + key, wrong),
                 Contains("found " + wrong.dump() + ", expected \""));
    }
  }
  for (const json& wrong : {json(1), json("true"), json(nullptr)}) {
    CHECK_THAT(error_after(config, "/final_norm", wrong), Contains("expected true or false"));
  }
  for (const json& wrong :
       {json("1e-5"), json(nullptr), json(false), json(0), json(-1e-5), json(2.0), json(1e-300)}) {
    CHECK_THAT(error_after(config, "/layer_norm_eps", wrong),
               Contains("found " + wrong.dump() + ", expected a number above 0 and at most 1"));
    // 0 is a number that only some feature maps take.
    CHECK_THAT(error_after(config, "/attention/eps", wrong), Contains("\"attention.eps\""));
  }
  for (const char* key : {"attention", "head", "modality"}) {
    for (const json& wrong : {json("linear"), json(1), json(nullptr)}) {
      CHECK_THAT(error_after(config, std::string("/") + key, wrong),
                 Contains("key \"" + std::string(key) + "\": found " + wrong.dump() +
                          ", expected an object"));
    }
  }
  CHECK_THAT(error_after(config, "/attention/type", "flash"),
             Contains("\"attention.type\": found \"flash\", expected \"linear\" or"));
  CHECK_THAT(error_after(config, "/attention/feature_map", "softplus"),
             Contains("found \"softplus\", expected \"elu_plus_one\" or"));
  json softmax = config;
  softmax["attention"] = {{"type", "softmax"}};
  for (const json& wrong : {json(0), json(-1), json("1"), json(1e40)}) {
    CHECK_THAT(error_after(softmax, "/attention/scale", wrong),
               Contains("\"attention.scale\": found " + wrong.dump()) && Contains("or null"));
  }
}

TEST_CASE("a zero or huge dimension is refused with its limit") {
  const json config = valid();
  const auto refused = [&](const char* pointer, std::int64_t value, std::int64_t limit) {
    CHECK_THAT(error_after(config, pointer, value),
               Contains("found " + std::to_string(value)) && Contains(std::to_string(limit)));
  };
  for (const char* pointer :
       {"/vocab_size", "/d_model", "/n_layers", "/n_heads", "/d_head", "/d_ff", "/head/mixtures",
        "/modality/height", "/modality/width", "/modality/channels"}) {
    refused(pointer, 0, 1);
    refused(pointer, INT32_MAX, 1);
    refused(pointer, INT64_MAX, 1);
  }
  refused("/max_length", kMaxMaxLength + 1, kMaxMaxLength);
  refused("/d_model", kMaxModelWidth + 1, kMaxModelWidth);
  refused("/modality/start_token", 256, 255);
  json wide = config;
  wide["n_heads"] = kMaxHeads;
  wide["d_head"] = kMaxHeadWidth;
  CHECK_THAT(error_of(wide.dump()), Contains("n_heads * d_head = 4194304") && Contains("65536"));
}

TEST_CASE("fields that contradict each other are refused") {
  const json image = valid();
  CHECK_THAT(error_after(image, "/format_version", 2), Contains("found 2, expected"));
  CHECK_THAT(error_after(image, "/vocab_size", 255),
             Contains("found 255, expected 256 for head type \"mixture_of_logistics\""));
  CHECK(error_after(image, "/max_length", 29) == "accepted");
  CHECK(error_after(image, "/max_length", 0) == "accepted");
  CHECK_THAT(error_after(image, "/d_model", 15), Contains("found 15, expected an even number"));
  CHECK_THAT(error_after(image, "/d_model", 18), Contains("found 18, expected a multiple of 4"));
  CHECK_THAT(error_after(image, "/position_encoding", "none"),
             Contains("\"position_encoding\": found \"none\", expected \"sinusoidal\" or"));
  CHECK_THAT(error_after(valid(TinyModel::kBytes), "/vocab_size", 255),
             Contains("found 255, expected 256 for modality type \"bytes\""));

  json add = image;
  add["embedding"] = "value_add_position";
  CHECK(error_after(add, "/d_model", 18) == "accepted");
  CHECK_THAT(error_after(add, "/d_model", 17), Contains("found 17, expected an even number"));
  add["position_encoding"] = "learned";
  CHECK(error_after(add, "/d_model", 17) == "accepted");
  CHECK_THAT(error_after(add, "/max_length", 0), Contains("found 0, expected at least 1"));

  const json tokens = valid(TinyModel::kTokens);
  CHECK(error_after(tokens, "/d_model", 17) == "accepted");
  CHECK_THAT(error_after(tokens, "/position_encoding", "learned"), Contains("expected \"none\""));

  for (const std::size_t n : {0u, 1u, 3u}) {
    CHECK_THAT(error_after(image, "/attention", json(n, json{{"type", "linear"}})),
               Contains("found a list of " + std::to_string(n)) && Contains("n_layers = 2"));
  }
}

json of_four_layers() {
  json config = valid();
  config["n_layers"] = 4;
  return config;
}

TEST_CASE("the structure of the layers is read, and written only where it says something") {
  json config = of_four_layers();
  config["embedding"] = "value_add_position";
  config["norm_placement"] = "pre";
  const std::string plain = to_json(parse_config(config.dump(), "f"));
  for (const char* key : {"layer_weights", "position_injection", "step_embedding", "residual"}) {
    CHECK(plain.find(key) == std::string::npos);
  }
  json same = config;
  same["layer_weights"] = {0, 1, 2, 3};
  same["position_injection"] = "input";
  same["step_embedding"] = false;
  same["residual"] = "sum";
  CHECK(to_json(parse_config(same.dump(), "f")) == plain);

  json other = config;
  other["layer_weights"] = {0, 1, 0, 1};
  other["position_injection"] = "every_layer";
  other["step_embedding"] = true;
  other["residual"] = "reversible_concat";
  const ModelConfig parsed = parse_config(other.dump(), "f");
  CHECK(parsed.layer_weights == std::vector<int>{0, 1, 0, 1});
  CHECK(parsed.num_layer_weights() == 2);
  CHECK(parsed.weights_of(3) == 1);
  CHECK(parsed.first_layer_with(1) == 1);
  CHECK(parsed.position_injection == PositionInjection::kEveryLayer);
  CHECK(parsed.step_embedding);
  CHECK(parsed.residual == Residual::kReversibleConcat);
  CHECK(parsed.last_width() == 2 * parsed.d_model);
  CHECK(json::parse(to_json(parsed)) == other);
  other["residual"] = "reversible_mean";
  CHECK(parse_config(other.dump(), "f").last_width() == parsed.d_model);
}

TEST_CASE("trained_length is read, and written if present") {
  json config = valid();
  CHECK(parse_config(config.dump(), "f").trained_length == 0);
  CHECK(to_json(parse_config(config.dump(), "f")).find("trained_length") == std::string::npos);
  config["trained_length"] = 256;
  const ModelConfig parsed = parse_config(config.dump(), "f");
  CHECK(parsed.trained_length == 256);
  CHECK(json::parse(to_json(parsed)) == config);
  for (const json& wrong : {json(0), json(-1), json(2147483648), json(1.5), json("256")}) {
    CAPTURE(wrong.dump());
    config["trained_length"] = wrong;
    CHECK_THROWS_WITH(parse_config(config.dump(), "f"),
                      Catch::Contains("key \"trained_length\": found " + wrong.dump()));
  }
}

TEST_CASE("a structure of the layers that makes no sense is refused by name") {
  const json config = of_four_layers();
  const auto refused = [&](const char* key, const json& value, const std::string& expected) {
    CHECK_THAT(error_after(config, std::string("/") + key, value),
               Contains("key \"" + std::string(key)) && Contains(expected));
  };
  for (const json& wrong : {json("0"), json(0), json(nullptr), json::object(), json::array(),
                            json({0, 1, 2, 4}), json({0, -1, 0, 0}), json({0, 1.0, 1, 1})}) {
    refused("layer_weights", wrong,
            "found " + wrong.dump() + ", expected a list of n_layers whole numbers from 0 to 3");
  }
  refused("layer_weights", {0, 0, 1}, "found a list of 3, expected a list of n_layers = 4");
  refused("layer_weights", {1, 0, 0, 0}, "[0]\": found 1, expected at most 0");
  refused("layer_weights", {0, 0, 2, 1}, "[2]\": found 2, expected at most 1");
  for (const json& wrong : {json("output"), json(true), json(nullptr)}) {
    refused("position_injection", wrong, "expected \"input\" or \"every_layer\"");
    refused("residual", wrong, "expected \"sum\" or \"reversible_mean\" or \"reversible_concat\"");
  }
  for (const json& wrong : {json("true"), json(1), json(nullptr)}) {
    refused("step_embedding", wrong, "expected true or false");
  }
  refused("position_injection", "every_layer",
          "expected \"input\" for embedding \"value_concat_position\"");
  for (const char* residual : {"reversible_mean", "reversible_concat"}) {
    refused("residual", residual, "expected \"sum\" for norm_placement \"post\"");
  }
  json differ = config;
  differ["layer_weights"] = {0, 0, 1, 1};
  differ["attention"] = json::array({{{"type", "linear"}},
                                     {{"type", "linear"}},
                                     {{"type", "softmax"}},
                                     {{"type", "softmax"}, {"scale", 0.5}}});
  CHECK_THAT(error_of(differ.dump()),
             Contains("key \"attention[3]\": found {\"type\":\"softmax\"") &&
                 Contains("expected that of layer 2"));
  differ["layer_weights"] = {0, 0, 1, 2};
  CHECK(error_of(differ.dump()) == "accepted");
}

TEST_CASE("a key that is there twice is refused by name") {
  std::string text = to_json(tiny_config(TinyModel::kImage));
  const auto with = [&](const std::string& before, const std::string& extra) {
    std::string changed = text;
    return changed.insert(changed.find(before), extra);
  };
  CHECK_THAT(error_of(with("\"d_model\"", "\"vocab_size\": 256, ")),
             Contains("key \"vocab_size\" is there twice"));
  CHECK_THAT(error_of(with("\"mixtures\"", "\"type\": \"categorical\", ")),
             Contains("key \"type\" is there twice"));
}

TEST_CASE("text that is not a JSON object is refused without echoing it whole") {
  for (const std::string text : {"", " ", "{", "}", "null", "[]", "1", "\"x\"", "{\"a\":1,}",
                                 "{\"a\":\"\xff\"}", "{} {}", "{\"d_model\": NaN}"}) {
    CHECK_THAT(error_of(text), Contains("dir/config.json: "));
  }
  CHECK(error_of("{\"" + std::string(500'000, 'a') + "\":1}").size() < 1000);
  CHECK(error_of(std::string(500'000, '1')).size() < 1000);
  CHECK_THAT(error_of("{\"a\\u0007\\n\":1}"), !Contains("\n"));
}

TEST_CASE("deep nesting is refused while reading") {
  CHECK_THAT(error_of(std::string(500'000, '[')), Contains("nested 9 deep, expected at most 8"));
  std::string objects;
  for (int i = 0; i < 100'000; ++i) objects += "{\"a\":";
  CHECK_THAT(error_of(objects), Contains("nested 9 deep, expected at most 8"));
}

TEST_CASE("a config file that is missing, a directory or too long is refused") {
  const testing::TemporaryDirectory directory;
  const auto error_of_file = [](const std::filesystem::path& file) -> std::string {
    try {
      load_config(file);
    } catch (const ModelError& error) {
      return error.what();
    }
    return "accepted";
  };
  const std::filesystem::path file = directory.path() / "config.json";
  CHECK_THAT(error_of_file(file), Contains(file.string()));
  CHECK_THAT(error_of_file(directory.path()), Contains("expected a regular file"));
  const std::string text = to_json(tiny_config(TinyModel::kImage));
  std::ofstream(file) << text << std::string(kMaxConfigBytes - text.size(), ' ');
  CHECK(error_of_file(file) == "accepted");
  std::ofstream(file, std::ios::app) << ' ';
  CHECK_THAT(error_of_file(file), Contains("1048576"));
}

}  // namespace lintel
