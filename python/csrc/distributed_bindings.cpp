#include "python/csrc/distributed_bindings.h"

#include <utility>
#include <vector>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/utils/pybind.h>

#include "backend/distributed/process_group.h"
#include "backend/distributed/simulated_network.h"
#include "backend/torch/device.h"

namespace py = pybind11;

namespace chameleon::python {

void bind_distributed(py::module_& m) {
  using distributed::Completion;
  using distributed::ProcessGroup;
  // The base class is torch's, bound where this PyTorch has it.
  const py::module_ torch = py::module_::import("torch.distributed");
  if (!torch.attr("is_available")().cast<bool>()) return;
  py::class_<ProcessGroup, c10::intrusive_ptr<ProcessGroup>, c10d::Backend>(
      m, "ProcessGroup")
      .def(py::init([](const c10::intrusive_ptr<c10d::Backend>& inner,
                       bool on_stream) {
             return c10::make_intrusive<ProcessGroup>(
                 inner,
                 on_stream ? Completion::kOnStream : Completion::kOnHost);
           }),
           py::arg("inner"), py::arg("on_stream"))
      .def_property_readonly("inner", &ProcessGroup::inner)
      // NCCL's alone: ranks that are in no part of a split.
      .def("perform_nocolor_split",
           [](const ProcessGroup& group, const at::Device& device) {
             backend::context(device.index(), "new_group"); // fixes the target
             py::cast(group.inner())
                 .attr("perform_nocolor_split")(
                     backend::target_device(device.index()));
           });
  using distributed::SimulatedNetwork;
  py::class_<SimulatedNetwork, c10::intrusive_ptr<SimulatedNetwork>,
             c10d::Backend>(m, "SimulatedNetwork")
      .def(py::init([](int rank, std::vector<int> machines) {
             return c10::make_intrusive<SimulatedNetwork>(rank,
                                                          std::move(machines));
           }),
           py::arg("rank"), py::arg("machines"));
}

} // namespace chameleon::python
