#include "tests/cpp/support/stream_clocks.h"

#include <algorithm>
#include <iterator>

namespace chameleon::support {

using runtime::Interval;

void AccessMap::splitAt(std::uintptr_t address) {
  auto node = nodes_.upper_bound(address);
  if (node == nodes_.begin()) return;
  --node;
  if (node->first == address || node->second.end <= address) return;
  Node upper = node->second;
  node->second.end = address;
  nodes_.emplace(address, std::move(upper));
}

std::optional<AccessMap::Clash> AccessMap::clash(const Nodes::value_type& node,
                                                 const LineClock& clock,
                                                 bool writes) {
  const Interval bytes{node.first, node.second.end};
  if (!clock.follows(node.second.writer)) {
    return Clash{node.second.writer, true, bytes};
  }
  if (!writes) return std::nullopt;
  for (const WorkPoint reader : node.second.readers) {
    if (!clock.follows(reader)) return Clash{reader, false, bytes};
  }
  return std::nullopt;
}

std::optional<AccessMap::Clash> AccessMap::touch(WorkPoint point,
                                                 const LineClock& clock,
                                                 Interval bytes, bool writes) {
  std::optional<Clash> found;
  if (bytes.empty()) return found;
  splitAt(bytes.begin);
  splitAt(bytes.end);
  const auto first = nodes_.lower_bound(bytes.begin);
  const auto last = nodes_.lower_bound(bytes.end);
  for (auto node = first; node != last && !found; ++node) {
    found = clash(*node, clock, writes);
  }
  if (writes) {
    nodes_.erase(first, last);
    nodes_[bytes.begin] = {bytes.end, point, {}};
    return found;
  }
  std::uintptr_t covered = bytes.begin;
  for (auto node = first; node != last; ++node) {
    if (node->first > covered) nodes_[covered] = {node->first, {}, {point}};
    covered = node->second.end;
    auto& readers = node->second.readers;
    const auto same = std::find_if(
        readers.begin(), readers.end(),
        [&](WorkPoint reader) { return reader.line == point.line; });
    if (same == readers.end()) {
      readers.push_back(point);
    } else {
      *same = point;
    }
  }
  if (covered < bytes.end) nodes_[covered] = {bytes.end, {}, {point}};
  return found;
}

std::optional<AccessMap::Clash> AccessMap::forget(const LineClock& clock,
                                                  Interval bytes) {
  std::optional<Clash> found;
  splitAt(bytes.begin);
  splitAt(bytes.end);
  const auto first = nodes_.lower_bound(bytes.begin);
  const auto last = nodes_.lower_bound(bytes.end);
  for (auto node = first; node != last && !found; ++node) {
    found = clash(*node, clock, /*writes=*/true);
  }
  nodes_.erase(first, last);
  return found;
}

} // namespace chameleon::support
