// Plans of PyTorch's ops, and of ops that exist for one test and have no
// kernel: their schemas are all that counts.
#pragma once

#include <gtest/gtest.h>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include "kernels/op_traits.h"

namespace chameleon::kernels {

// As "aten::add.Tensor".
inline c10::OperatorHandle op_named(const std::string& name) {
  const std::size_t dot = name.find('.');
  return c10::Dispatcher::singleton().findSchemaOrThrow(
      name.substr(0, dot).c_str(),
      dot == std::string::npos ? "" : name.substr(dot + 1).c_str());
}

// Defines an op for as long as the process lives. `name` with its overload, as
// "aten::add.Tensor"; `schema` from its arguments on, "(Tensor a) -> Tensor".
inline c10::OperatorHandle define(const std::string& name,
                                  std::string_view schema,
                                  const std::vector<at::Tag>& tags = {}) {
  const std::size_t colons = name.find("::");
  // Leaked: the op is gone with it.
  auto* const library =
      new torch::Library(torch::Library::FRAGMENT, name.substr(0, colons),
                         std::nullopt, __FILE__, __LINE__);
  library->def((name.substr(colons + 2) + std::string(schema)).c_str(), tags);
  return op_named(name);
}

// The traits of a new op of a library of its own.
inline OpTraits plan_for(std::string_view schema,
                         const std::vector<at::Tag>& tags = {}) {
  static int count = 0;
  return OpTraits(
      define("made_up::op" + std::to_string(count++), schema, tags));
}

// As "add.Tensor".
inline OpTraits plan_of_aten(const std::string& name) {
  return OpTraits(op_named("aten::" + name));
}

} // namespace chameleon::kernels
