#include "backend/runtime/nvtx_range.h"

#if __has_include(<nvtx3/nvToolsExt.h>)
#include <nvtx3/nvToolsExt.h>

namespace chameleon::runtime {
namespace {

// Null without a tool.
nvtxDomainHandle_t domain() noexcept {
  static nvtxDomainRegistration* const kDomain = nvtxDomainCreateA("chameleon");
  return kDomain;
}

} // namespace

NvtxRange::NvtxRange(const char* name) noexcept {
  if (domain() == nullptr) return;
  nvtxEventAttributes_t event{};
  event.version = NVTX_VERSION;
  event.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
  event.messageType = NVTX_MESSAGE_TYPE_ASCII;
  event.message.ascii = name;
  (void)nvtxDomainRangePushEx(domain(), &event);
}

NvtxRange::~NvtxRange() {
  if (domain() != nullptr) (void)nvtxDomainRangePop(domain());
}

} // namespace chameleon::runtime

#else

namespace chameleon::runtime {

NvtxRange::NvtxRange(const char* /*name*/) noexcept {}
NvtxRange::~NvtxRange() = default;

} // namespace chameleon::runtime

#endif
