#include "backend/runtime/simulated/gpu_profiles.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <optional>
#include <utility>
#include <vector>

#include "backend/runtime/byte_size.h"
#include "backend/runtime/quote.h"

namespace chameleon::runtime {

namespace {

constexpr std::size_t kGiB = std::size_t{1} << 30;

// Sources, all by NVIDIA; every rate is dense, without sparsity.
//  [1] H200 Tensor Core GPU data sheet, specifications of the SXM module.
//  [2] H100 Tensor Core GPU data sheet, specifications of the SXM module.
//  [3] A100 Tensor Core GPU data sheet, specifications of the SXM modules.
//  [4] L40S data sheet, specifications. FP64 is 1/64 of FP32, as in [5].
//  [5] Ada GPU Architecture white paper, appendix A, GeForce RTX 4090: FP16 and
//      BF16 tensor rates with FP32 accumulation; FP64 is 1/64 of FP32.
//  [6] RTX Blackwell GPU Architecture white paper, appendix A, GeForce RTX
//      5090: as in [5].
//  [7] Ampere GA102 GPU Architecture white paper, appendix A, GeForce RTX
//      3090: as in [5].
//  [8] V100 data sheet, specifications of the SXM2 modules.
//  [9] T4 data sheet, specifications. FP64 is 1/32 of FP32: Turing GPU
//      Architecture white paper.
// [10] A10 data sheet, specifications. FP64 is 1/64 of FP32, as in [7].
// [11] L4 data sheet, specifications. FP64 is 1/64 of FP32, as in [5].
// [12] Product pages of the GeForce RTX 4080 and 4070: cores and boost clock.
//      FP32 is two operations a core and clock; the rest is to FP32 as in [5].
// Volta and Turing have no TF32 and no BF16: such products run as FP32.
// On the data-centre parts FP64 and FP32 products run at: FP64 tensor cores
// [1-3]; FP32 on CUDA cores (TF32 has its own row). Data sheets give memory in
// GB; memory chips come in powers of two, so those are GiB here. Where ECC
// lives in the memory itself (GDDR6 of T4, A10, L4, L40S) it takes a sixteenth.
//
// Entered by hand; other publications confirmed the L40S, the 5090's memory and
// bandwidth, part of the 4090, V100, T4, 4080 and 4070, the rest has not been
// checked a second time.
//
// Products are named as the driver names them; multiprocessors are those of the
// white papers and product pages [1-12], the capability of a card is in
// NVIDIA's table "CUDA GPU Compute Capability". Entered by hand as well.
//
// Assumptions, where no data sheet has a figure:
//  - h200, achieved: 700e12 FLOP/s of BF16 and 4.0e12 B/s; rtx4090: 160e12 and
//    1.0e12. The others take h200's fractions.
//  - kernel launch 3 us, copy latency 7 us a copy, both serial.
//  - link: PCIe 5.0, 4.0 and 3.0 x16 carry 63, 31.5 and 15.75 GB/s each way
//    (PCI-SIG, 128b/130b coding); copies reach 55, 25 and 12.5 GB/s one way,
//    90, 40 and 20 GB/s both ways together.
//  - host memory: an eighth of a DGX system's with 8 such GPUs (2 TB: H200,
//    H100, A100 80GB; 1 TB: A100 40GB; DGX data sheets), else a usual
//    workstation's.
//  - to other GPUs, by NVLink: its links (12 of A100, 18 of H100 and H200, 6 of
//    V100: [1-3, 8]) times what NCCL takes one to carry, 20 GB/s of Volta's and
//    Ampere's, 20.6 GB/s of Hopper's (nccl, src/graph/topo.h: SM70_NVLINK_BW,
//    SM80_NVLINK_BW, SM90_NVLINK_BW). The switches of Hopper's machines add up
//    (NVLink SHARP, H100 data sheet). A 3090's bridge joins two, and is left
//    out. GeForce cards have no peer access over PCIe: NVIDIA's driver gives
//    them none; others have.
//  - to other machines: an eighth of a DGX system's (DGX H200, H100: 8 x 400
//    Gbit/s InfiniBand; DGX A100: 8 x 200 Gbit/s; DGX-1 with V100: 4 x 100
//    Gbit/s; DGX data sheets); else 10 Gbit/s Ethernet for each GPU.
//  - attention: memory-efficient kernels exist for all; PyTorch has flash
//    attention from compute capability 8.0 on, so V100 and T4 have none.
struct Link {
  double one_way;
  double both;
};
constexpr Link kPcie5{55e9, 90e9};
constexpr Link kPcie4{25e9, 40e9};
constexpr Link kPcie3{12.5e9, 20e9};
struct Interconnect {
  double nvlink; // GB/s each way
  bool nvlink_reduces;
  bool peer_access;
  double network_gbit_per_s;
};
constexpr Interconnect kDgxHopper{18 * 20.6, true, true, 400};
constexpr Interconnect kDgxA100{12 * 20.0, false, true, 200};
constexpr Interconnect kDgx1{6 * 20.0, false, true, 50};
constexpr Interconnect kPcieServer{0, false, true, 10};
constexpr Interconnect kGeForce{0, false, false, 10};
constexpr double kComputeFraction = 700.0 / 989.4;
constexpr double kBandwidthFraction = 4.0 / 4.8;

struct Figures {
  const char* name;
  const char* product;
  int major, minor; // compute capability
  int multiprocessors;
  double memory_gib;
  std::size_t host_gib;
  double hbm_gb_per_s;
  double fp64, fp32, tf32, fp16, bf16; // TFLOP/s
  Link link;
  double compute_fraction = kComputeFraction;
  double bandwidth_fraction = kBandwidthFraction;
  bool flash_attention = true;
};

const Interconnect& interconnect_of(std::string_view name) {
  if (name.starts_with('h')) return kDgxHopper;
  if (name.starts_with("a100")) return kDgxA100;
  if (name.starts_with("v100")) return kDgx1;
  return name.starts_with("rtx") ? kGeForce : kPcieServer;
}

constexpr Figures kFigures[] = {
    // Name, product, capability, multiprocessors;
    // GiB, host, GB/s, fp64, fp32, tf32, fp16, bf16, link.
    {"h200", "NVIDIA H200", 9, 0, 132, 141, 256, 4800, 66.9, 66.9, 494.7, 989.4,
     989.4, kPcie5}, // [1]
    {"h100", "NVIDIA H100 80GB HBM3", 9, 0, 132, 80, 256, 3350, 66.9, 66.9,
     494.7, 989.4, 989.4, kPcie5}, // [2]
    {"a100-80gb", "NVIDIA A100-SXM4-80GB", 8, 0, 108, 80, 256, 2039, 19.5, 19.5,
     156, 312, 312, kPcie4}, // [3]
    {"a100-40gb", "NVIDIA A100-SXM4-40GB", 8, 0, 108, 40, 128, 1555, 19.5, 19.5,
     156, 312, 312, kPcie4}, // [3]
    {"l40s", "NVIDIA L40S", 8, 9, 142, 45, 128, 864, 1.43, 91.6, 183, 362.05,
     362.05, kPcie4}, // [4]
    {"rtx4090", "NVIDIA GeForce RTX 4090", 8, 9, 128, 24, 64, 1008, 1.29, 82.6,
     82.6, 165.2, 165.2, kPcie4, // [5]
     160.0 / 165.2, 1000.0 / 1008.0},
    {"rtx5090", "NVIDIA GeForce RTX 5090", 12, 0, 170, 32, 128, 1792, 1.64,
     104.8, 104.8, 209.5, 209.5, kPcie5}, // [6]
    {"rtx3090", "NVIDIA GeForce RTX 3090", 8, 6, 82, 24, 64, 936, 0.556, 35.6,
     35.6, 71, 71, kPcie4}, // [7]
    {"v100-16gb", "Tesla V100-SXM2-16GB", 7, 0, 80, 16, 64, 900, 7.8, 15.7,
     15.7, 125, 15.7, kPcie3, // [8]
     kComputeFraction, kBandwidthFraction, false},
    {"v100-32gb", "Tesla V100-SXM2-32GB", 7, 0, 80, 32, 64, 900, 7.8, 15.7,
     15.7, 125, 15.7, kPcie3, // [8]
     kComputeFraction, kBandwidthFraction, false},
    {"t4", "Tesla T4", 7, 5, 40, 15, 64, 320, 0.253, 8.1, 8.1, 65, 8.1,
     kPcie3, // [9]
     kComputeFraction, kBandwidthFraction, false},
    {"a10", "NVIDIA A10", 8, 6, 72, 22.5, 64, 600, 0.488, 31.2, 62.5, 125, 125,
     kPcie4}, // [10]
    {"l4", "NVIDIA L4", 8, 9, 58, 22.5, 64, 300, 0.473, 30.3, 60, 121, 121,
     kPcie4}, // [11]
    {"rtx4080", "NVIDIA GeForce RTX 4080", 8, 9, 76, 16, 64, 716.8, 0.762, 48.7,
     48.7, 97.5, 97.5, kPcie4}, // [12]
    {"rtx4070", "NVIDIA GeForce RTX 4070", 8, 9, 46, 12, 64, 504.2, 0.455, 29.1,
     29.1, 58.3, 58.3, kPcie4}, // [12]
};

GpuProfile profile_of(const Figures& figures) {
  GpuProfile profile;
  profile.name = figures.name;
  profile.product = figures.product;
  profile.capability = {figures.major, figures.minor};
  profile.multiprocessors = figures.multiprocessors;
  profile.memory_bytes =
      static_cast<std::size_t>(figures.memory_gib * static_cast<double>(kGiB));
  profile.host_memory_bytes = figures.host_gib * kGiB;
  profile.hbm_bytes_per_s = figures.hbm_gb_per_s * 1e9;
  profile.flops_per_s = {figures.fp64 * 1e12, figures.fp32 * 1e12,
                         figures.tf32 * 1e12, figures.fp16 * 1e12,
                         figures.bf16 * 1e12};
  profile.compute_fraction = figures.compute_fraction;
  profile.bandwidth_fraction = figures.bandwidth_fraction;
  profile.launch_ns = 3000;
  profile.link_in_bytes_per_s = figures.link.one_way;
  profile.link_out_bytes_per_s = figures.link.one_way;
  profile.link_both_bytes_per_s = figures.link.both;
  profile.copy_latency_ns = 7000;
  const Interconnect& interconnect = interconnect_of(profile.name);
  profile.nvlink_bytes_per_s = interconnect.nvlink * 1e9;
  profile.nvlink_reduces = interconnect.nvlink_reduces;
  profile.peer_access = interconnect.peer_access;
  profile.network_bytes_per_s = interconnect.network_gbit_per_s * 1e9 / 8;
  profile.flash_attention = figures.flash_attention;
  profile.efficient_attention = true;
  return profile;
}

// ---- a user's own --------------------------------------------------------

enum class Unit : std::uint8_t {
  kText,
  kBytes,          // 96GiB
  kBytesPerSecond, // 4.8e12, 4.8TB/s
  kFlopsPerSecond, // 989e12, 989TFLOP/s
  kFraction,       // over 0, up to 1
  kNanoseconds,    // 3000
  kSwitch,         // 0 or 1
  kCapability,     // 8.9
  kCount,          // 132
};

struct Figure {
  double number = 0;
  std::size_t bytes = 0;
  std::string text;
};

struct Key {
  std::string_view name;
  Unit unit;
  bool required; // without a base
  void (*set)(GpuProfile&, const Figure&);
};

template <double GpuProfile::* Member>
void set_number(GpuProfile& profile, const Figure& value) {
  profile.*Member = value.number;
}
template <std::int64_t GpuProfile::* Member>
void set_ns(GpuProfile& profile, const Figure& value) {
  profile.*Member = static_cast<std::int64_t>(value.number);
}
template <std::size_t GpuProfile::* Member>
void set_bytes(GpuProfile& profile, const Figure& value) {
  profile.*Member = value.bytes;
}
template <MathType Math>
void set_flops(GpuProfile& profile, const Figure& value) {
  profile.flops_per_s[static_cast<std::size_t>(Math)] = value.number;
}
template <bool GpuProfile::* Member>
void set_switch(GpuProfile& profile, const Figure& value) {
  profile.*Member = value.number != 0;
}

void set_capability(GpuProfile& profile, const Figure& value) {
  const auto tenths = static_cast<int>(std::lround(value.number * 10));
  profile.capability = {tenths / 10, tenths % 10};
}
void set_multiprocessors(GpuProfile& profile, const Figure& value) {
  profile.multiprocessors = static_cast<int>(value.number);
}

constexpr Key kKeys[] = {
    {"base", Unit::kText, false, nullptr}, // a profile to start from
    {"name", Unit::kText, false,
     [](GpuProfile& profile, const Figure& v) { profile.name = v.text; }},
    {"product", Unit::kText, false,
     [](GpuProfile& profile, const Figure& v) { profile.product = v.text; }},
    {"memory", Unit::kBytes, true, set_bytes<&GpuProfile::memory_bytes>},
    {"host_memory", Unit::kBytes, true,
     set_bytes<&GpuProfile::host_memory_bytes>},
    {"hbm_bandwidth", Unit::kBytesPerSecond, true,
     set_number<&GpuProfile::hbm_bytes_per_s>},
    {"fp64", Unit::kFlopsPerSecond, true, set_flops<MathType::kFp64>},
    {"fp32", Unit::kFlopsPerSecond, true, set_flops<MathType::kFp32>},
    {"tf32", Unit::kFlopsPerSecond, true, set_flops<MathType::kTf32>},
    {"fp16", Unit::kFlopsPerSecond, true, set_flops<MathType::kFp16>},
    {"bf16", Unit::kFlopsPerSecond, true, set_flops<MathType::kBf16>},
    {"compute_fraction", Unit::kFraction, true,
     set_number<&GpuProfile::compute_fraction>},
    {"bandwidth_fraction", Unit::kFraction, true,
     set_number<&GpuProfile::bandwidth_fraction>},
    {"launch_ns", Unit::kNanoseconds, true, set_ns<&GpuProfile::launch_ns>},
    {"link_in", Unit::kBytesPerSecond, true,
     set_number<&GpuProfile::link_in_bytes_per_s>},
    {"link_out", Unit::kBytesPerSecond, true,
     set_number<&GpuProfile::link_out_bytes_per_s>},
    {"link_both", Unit::kBytesPerSecond, true,
     set_number<&GpuProfile::link_both_bytes_per_s>},
    {"copy_latency_ns", Unit::kNanoseconds, true,
     set_ns<&GpuProfile::copy_latency_ns>},
    {"nvlink", Unit::kBytesPerSecond, false,
     set_number<&GpuProfile::nvlink_bytes_per_s>},
    {"nvlink_reduces", Unit::kSwitch, false,
     set_switch<&GpuProfile::nvlink_reduces>},
    {"peer_access", Unit::kSwitch, false, set_switch<&GpuProfile::peer_access>},
    {"network", Unit::kBytesPerSecond, false,
     set_number<&GpuProfile::network_bytes_per_s>},
    {"flash_attention", Unit::kSwitch, true,
     set_switch<&GpuProfile::flash_attention>},
    {"efficient_attention", Unit::kSwitch, true,
     set_switch<&GpuProfile::efficient_attention>},
    {"capability", Unit::kCapability, true, set_capability},
    {"multiprocessors", Unit::kCount, true, set_multiprocessors},
};

Error invalid(const std::string& what) {
  return {ErrorCode::kInvalidArgument, what};
}

std::string known_names() {
  std::string list;
  for (const GpuProfile& profile : gpu_profiles()) {
    list += (list.empty() ? "" : ", ") + profile.name;
  }
  return list;
}

std::string known_keys() {
  std::string list;
  for (const Key& key : kKeys) {
    list += (list.empty() ? "" : ", ") + std::string(key.name);
  }
  return list;
}

const char* allowed(Unit unit) {
  switch (unit) {
    case Unit::kText:
      return "a name";
    case Unit::kBytes:
      return "bytes, such as \"96GiB\"";
    case Unit::kBytesPerSecond:
      return "bytes per second from 1e6 to 1e18, such as 55e9 or \"55GB/s\"";
    case Unit::kFlopsPerSecond:
      return "floating point operations per second from 1e6 to 1e18, such as "
             "989e12 or \"989TFLOP/s\"";
    case Unit::kFraction:
      return "a fraction, more than 0 and at most 1";
    case Unit::kNanoseconds:
      return "nanoseconds, a number from 0 to 1e9";
    case Unit::kSwitch:
      return "0 or 1";
    case Unit::kCapability:
      return "a compute capability from 1.0 to 99.9, such as 8.9";
    case Unit::kCount:
      return "a number from 1 to 10000";
  }
  return "";
}

constexpr double kOtherNetwork = 10e9 / 8; // of who says nothing

// A second: so that all times can be counted in picoseconds.
constexpr double kLeastRate = 1e6;
constexpr double kMostRate = 1e18;

// A number at the start of `text`; the rest, trimmed, is left in it.
std::optional<double> take_number(std::string_view& text) {
  double number = 0;
  const auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || !std::isfinite(number)) return std::nullopt;
  text = trimmed(text.substr(static_cast<std::size_t>(end - text.data())));
  return number;
}

std::optional<double> flops_unit(std::string_view unit) {
  constexpr std::pair<std::string_view, double> kUnits[] = {{"", 1},
                                                            {"FLOP/s", 1},
                                                            {"GFLOP/s", 1e9},
                                                            {"TFLOP/s", 1e12},
                                                            {"PFLOP/s", 1e15}};
  for (const auto& [name, factor] : kUnits) {
    if (name == unit) return factor;
  }
  return std::nullopt;
}

bool fits(Unit unit, double number) {
  switch (unit) {
    case Unit::kFraction:
      return number > 0 && number <= 1;
    case Unit::kSwitch:
      return number == 0 || number == 1;
    case Unit::kCapability:
      return number >= 1 && number < 99.95;
    case Unit::kCount:
      return number >= 1 && number <= 1e4 && number == std::floor(number);
    default:
      return number >= 0 && number <= 1e9;
  }
}

// As in 24G, which is memory.
bool is_short_unit(std::string_view text) {
  return text.find_last_of("kmgtKMGT") + 1 == text.size() && !text.empty();
}

std::optional<Figure> parse_value(Unit unit, std::string_view text) {
  Figure value;
  value.text = text;
  std::string_view rest = text;
  switch (unit) {
    case Unit::kText:
      return text.empty() ? std::nullopt : std::optional(value);
    case Unit::kBytes: {
      const Result<std::size_t> bytes = parse_bytes(text);
      if (!bytes.ok() || bytes.value() < (std::size_t{1} << 20)) break;
      value.bytes = bytes.value();
      return value;
    }
    case Unit::kBytesPerSecond: {
      if (rest.ends_with("/s")) rest.remove_suffix(2);
      if (is_short_unit(rest)) break; // of a rate G is 1e9 to all others
      const Result<std::size_t> bytes = parse_bytes(rest);
      if (!bytes.ok()) break;
      value.number = static_cast<double>(bytes.value());
      if (!(value.number >= kLeastRate && value.number <= kMostRate)) break;
      return value;
    }
    case Unit::kFlopsPerSecond: {
      const std::optional<double> number = take_number(rest);
      const std::optional<double> factor = flops_unit(rest);
      if (!number || !factor) break;
      value.number = *number * *factor;
      if (!(value.number >= kLeastRate && value.number <= kMostRate)) break;
      return value;
    }
    case Unit::kFraction:
    case Unit::kNanoseconds:
    case Unit::kSwitch:
    case Unit::kCapability:
    case Unit::kCount: {
      const std::optional<double> number = take_number(rest);
      if (!number || !rest.empty() || !fits(unit, *number)) break;
      value.number = *number;
      return value;
    }
  }
  return std::nullopt;
}

const GpuProfile* find_profile(std::string_view name) {
  for (const GpuProfile& profile : gpu_profiles()) {
    if (profile.name == name) return &profile;
  }
  return nullptr;
}

struct Given {
  const Key* key;
  std::string_view text;
};

Result<std::vector<Given>> split(std::string_view text) {
  std::vector<Given> given;
  while (!text.empty()) {
    const std::size_t comma = std::min(text.find(','), text.size());
    const std::string_view part = text.substr(0, comma);
    text.remove_prefix(std::min(comma + 1, text.size()));
    const std::size_t equals = part.find('=');
    const std::string_view name =
        trimmed(part.substr(0, std::min(equals, part.size())));
    const auto* const key =
        std::find_if(std::begin(kKeys), std::end(kKeys),
                     [&](const Key& each) { return each.name == name; });
    if (equals == std::string_view::npos || key == std::end(kKeys)) {
      return invalid("there is no figure " + quote(name) + "; there are " +
                     known_keys());
    }
    for (const Given& other : given) {
      if (other.key == key) return invalid(quote(name) + " is given twice");
    }
    given.push_back({key, trimmed(part.substr(equals + 1))});
  }
  return given;
}

Error check_link(const GpuProfile& profile) {
  const double in = profile.link_in_bytes_per_s;
  const double out = profile.link_out_bytes_per_s;
  if (profile.link_both_bytes_per_s >= std::max(in, out) &&
      profile.link_both_bytes_per_s <= in + out) {
    return {};
  }
  return invalid(
      "link_both must lie between the larger of link_in and link_out and "
      "their sum");
}

Result<GpuProfile> parse_figures(std::string_view text) {
  Result<std::vector<Given>> given = split(text);
  if (!given.ok()) return given.takeError();
  GpuProfile profile;
  profile.name = profile.product = "custom";
  profile.network_bytes_per_s = kOtherNetwork;
  bool has_base = false;
  for (const Given& each : *given) {
    if (each.key->name != "base") continue;
    const GpuProfile* base = find_profile(each.text);
    if (base == nullptr) {
      return invalid("base = " + quote(each.text) + " must be one of " +
                     known_names());
    }
    profile = *base;
    has_base = true;
  }
  std::string missing;
  for (const Key& key : kKeys) {
    const auto found =
        std::find_if(given->begin(), given->end(),
                     [&](const Given& each) { return each.key == &key; });
    if (found == given->end()) {
      if (key.required && !has_base) {
        missing += (missing.empty() ? "" : ", ") + std::string(key.name);
      }
      continue;
    }
    if (key.set == nullptr) continue;
    const std::optional<Figure> value = parse_value(key.unit, found->text);
    if (!value) {
      return invalid(std::string(key.name) + " = " + quote(found->text) +
                     " must be " + allowed(key.unit));
    }
    key.set(profile, *value);
  }
  if (!missing.empty()) {
    return invalid("missing: " + missing +
                   "; give them, or a profile to start from as base (" +
                   known_names() + ")");
  }
  if (Error error = check_link(profile)) return error;
  return profile;
}

} // namespace

std::span<const GpuProfile> gpu_profiles() {
  static const auto* const all = [] { // leaked, as the options are
    auto* list = new std::vector<GpuProfile>;
    for (const Figures& figures : kFigures) {
      list->push_back(profile_of(figures));
    }
    return list;
  }();
  return *all;
}

Result<GpuProfile> parse_gpu_profile(std::string_view text) {
  text = trimmed(text);
  if (text.find('=') != std::string_view::npos) return parse_figures(text);
  if (const GpuProfile* profile = find_profile(text)) return *profile;
  return invalid("must be one of " + known_names() +
                 ", or figures such as \"base=h200, memory=96GiB\"");
}

} // namespace chameleon::runtime
