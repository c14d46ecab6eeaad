#include "backend/runtime/cpu/poison.h"

#include <algorithm>
#include <cstring>
#include <sys/mman.h>
#include <unistd.h>

namespace chameleon::runtime {

namespace {

std::uintptr_t page_bytes() {
  static const auto bytes = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}
std::uintptr_t page_down(std::uintptr_t address) {
  return address & ~(page_bytes() - 1);
}
std::uintptr_t page_up(std::uintptr_t address) {
  return page_down(address + page_bytes() - 1);
}

void protect(Interval pages, int protection) {
  if (pages.empty()) return;
  // May fail when the process has too many mappings; the fill remains.
  static_cast<void>(mprotect(reinterpret_cast<void*>(pages.begin),
                             pages.end - pages.begin, protection));
}

} // namespace

void fill_with_poison(Interval interval) {
  constexpr std::uint64_t kWord = kPoisonPattern * 0x0001000100010001u;
  auto* bytes = reinterpret_cast<std::byte*>(interval.begin);
  std::size_t left = interval.end - interval.begin;
  for (; left >= sizeof kWord; left -= sizeof kWord, bytes += sizeof kWord) {
    std::memcpy(bytes, &kWord, sizeof kWord);
  }
  std::memcpy(bytes, &kWord, left);
}

void Poison::apply(Interval interval) {
  if (interval.empty()) return;
  // Bytes of it that are poisoned already may be protected.
  if (poisoned_.overlaps(interval)) lift(interval);
  fill_with_poison(interval);
  poisoned_.add(interval);
  // Also pages that this interval shares with its poisoned neighbours.
  const Interval around = poisoned_.rangeAround(interval);
  protect({std::max(page_up(around.begin), page_down(interval.begin)),
           std::min(page_down(around.end), page_up(interval.end))},
          PROT_NONE);
}

void Poison::lift(Interval interval) {
  if (!poisoned_.overlaps(interval)) return;
  poisoned_.remove(interval);
  protect({page_down(interval.begin), page_up(interval.end)},
          PROT_READ | PROT_WRITE);
}

} // namespace chameleon::runtime
