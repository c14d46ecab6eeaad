// Python's part of initialising CUDA: torch.cuda's own, so that what it put off
// until then (seeds) takes place, and so that both know of it.
//
// Thread safety: any thread; takes the GIL.
#pragma once

namespace chameleon::python {

void install_cuda_init();

} // namespace chameleon::python
