#include "python/csrc/cuda_alias.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <functional>
#include <limits>
#include <string>
#include <string_view>
#include <utility>

#include <c10/core/Device.h>
#include <torch/csrc/Device.h>
#include <torch/csrc/autograd/python_variable.h>

#include "python/csrc/default_device.h"

namespace py = pybind11;

namespace chameleon::python {
namespace {

constexpr std::string_view kCuda = "cuda";
constexpr std::string_view kOurs = "chameleon";

c10::Device ours_for(const c10::Device& device) {
  return device.is_cuda()
             ? c10::Device(c10::DeviceType::PrivateUse1, device.index())
             : device;
}

bool says_cuda(std::string_view text) {
  return text.starts_with(kCuda) &&
         (text.size() == kCuda.size() || text[kCuda.size()] == ':');
}

// Null where `value` is no device "cuda".
py::object ours_for(PyObject* value) {
  if (THPDevice_Check(value)) {
    const c10::Device& device = reinterpret_cast<THPDevice*>(value)->device;
    if (!device.is_cuda()) {
      return {};
    }
    return py::reinterpret_steal<py::object>(THPDevice_New(ours_for(device)));
  }
  if (PyUnicode_Check(value)) {
    Py_ssize_t size = 0;
    const char* const text = PyUnicode_AsUTF8AndSize(value, &size);
    if (text == nullptr) {
      PyErr_Clear(); // torch says what is wrong with it
      return {};
    }
    const std::string_view name(text, static_cast<std::size_t>(size));
    if (says_cuda(name)) {
      return py::str(std::string(kOurs).append(name.substr(kCuda.size())));
    }
  }
  return {};
}

// What a function gets: the caller's own objects if there is nothing to change.
class Arguments {
 public:
  Arguments(PyObject* args, PyObject* kwargs, Unsaid unsaid)
      : args_(py::reinterpret_borrow<py::object>(args)),
        kwargs_(py::reinterpret_borrow<py::object>(kwargs)) {
    const bool positional = change_positional();
    const bool said = change_named() || positional;
    if (unsaid == Unsaid::kCuda && !said) {
      args_ = py::make_tuple(py::str(std::string(kOurs))) + args_;
    } else if (unsaid >= Unsaid::kDefault && is_placed_by_default()) {
      place(unsaid == Unsaid::kDefaultForData);
    }
  }

  PyObject* args() const { return args_.ptr(); }
  PyObject* kwargs() const { return kwargs_.ptr(); }

 private:
  static bool is_device(PyObject* value) {
    return THPDevice_Check(value) || PyUnicode_Check(value);
  }

  // Whether a device is among them.
  bool change_positional() {
    const Py_ssize_t size = PyTuple_GET_SIZE(args_.ptr());
    bool found = false;
    py::object changed;
    for (Py_ssize_t i = 0; i < size; ++i) {
      PyObject* const value = PyTuple_GET_ITEM(args_.ptr(), i);
      found = found || is_device(value);
      if (py::object ours = ours_for(value)) {
        if (!changed) {
          changed = py::list(args_);
        }
        changed[py::int_(i)] = std::move(ours);
      }
    }
    if (changed) {
      args_ = py::tuple(changed);
    }
    return found;
  }

  bool change_named() {
    if (!kwargs_) {
      return false;
    }
    bool found = false;
    py::object changed;
    PyObject* key = nullptr;
    PyObject* value = nullptr;
    Py_ssize_t at = 0;
    while (PyDict_Next(kwargs_.ptr(), &at, &key, &value) != 0) {
      found = found || is_device(value);
      if (py::object ours = ours_for(value)) {
        if (!changed) {
          changed =
              py::reinterpret_steal<py::object>(PyDict_Copy(kwargs_.ptr()));
        }
        changed[py::handle(key)] = std::move(ours);
      }
    }
    if (changed) {
      kwargs_ = std::move(changed);
    }
    return found;
  }

  // Names this device, unless something says where.
  void place(bool tensors_say) {
    const py::dict named =
        kwargs_ ? py::reinterpret_borrow<py::dict>(kwargs_) : py::dict();
    for (const char* const name : {"device", "out"}) {
      if (named.contains(name) && !named[name].is_none()) {
        return;
      }
    }
    if (tensors_say && has_tensor(named)) {
      return;
    }
    kwargs_ = named.attr("copy")();
    kwargs_["device"] = std::string(kOurs);
  }

  bool has_tensor(const py::dict& named) const {
    for (const py::handle value : args_) {
      if (THPVariable_Check(value.ptr())) {
        return true;
      }
    }
    return std::any_of(named.begin(), named.end(), [](const auto& item) {
      return THPVariable_Check(item.second.ptr());
    });
  }

  py::object args_;
  py::object kwargs_;
};

// CPython's entry points get no word of which function is meant. So each one
// that is replaced has an entry point of its own, which knows its place here.
// NOLINTBEGIN(cppcoreguidelines-avoid-non-const-global-variables)
template <typename Entry>
struct Replaced {
  Entry original = nullptr;
  void* owner = nullptr; // the definition or type that the entry belongs to
  Unsaid unsaid = Unsaid::kNothing;
};
constexpr std::size_t kMostFunctions = 128;
constexpr std::size_t kMostTypes = 16;
std::array<Replaced<PyCFunctionWithKeywords>, kMostFunctions>
    replaced_functions;
std::array<Replaced<newfunc>, kMostTypes> replaced_types;
richcmpfunc compare_devices = nullptr;
// NOLINTEND(cppcoreguidelines-avoid-non-const-global-variables)

template <typename Call>
PyObject* with_python_errors(const Call& call) {
  try {
    return call();
  } catch (py::error_already_set& error) {
    error.restore();
    return nullptr;
  }
}

template <std::size_t Place>
PyObject* call_function(PyObject* self, PyObject* args, PyObject* kwargs) {
  return with_python_errors([&] {
    const Arguments ours(args, kwargs, replaced_functions[Place].unsaid);
    return replaced_functions[Place].original(self, ours.args(), ours.kwargs());
  });
}

template <std::size_t Place>
PyObject* construct(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  return with_python_errors([&] {
    const Arguments ours(args, kwargs, replaced_types[Place].unsaid);
    return replaced_types[Place].original(type, ours.args(), ours.kwargs());
  });
}

template <std::size_t... Places>
constexpr auto function_entries(std::index_sequence<Places...>) {
  return std::array<PyCFunctionWithKeywords, sizeof...(Places)>{
      &call_function<Places>...};
}

template <std::size_t... Places>
constexpr auto constructor_entries(std::index_sequence<Places...>) {
  return std::array<newfunc, sizeof...(Places)>{&construct<Places>...};
}

// The new entry for what `owner` is entered by; null: it has one already.
template <typename Entry, std::size_t Size>
Entry replace(std::array<Replaced<Entry>, Size>& table,
              const std::array<Entry, Size>& entries,
              const Replaced<Entry>& replaced) {
  for (std::size_t place = 0; place < Size; ++place) {
    if (table[place].owner == replaced.owner) {
      return nullptr;
    }
    if (table[place].owner == nullptr) {
      table[place] = replaced;
      return entries[place];
    }
  }
  throw py::type_error("alias_cuda_in: no more functions can be aliased");
}

// Null where `callable` is no C function.
PyMethodDef* definition_of(PyObject* callable) {
  if (PyCFunction_Check(callable)) {
    return reinterpret_cast<PyCFunctionObject*>(callable)->m_ml;
  }
  if (PyObject_TypeCheck(callable, &PyMethodDescr_Type)) {
    return reinterpret_cast<PyMethodDescrObject*>(callable)->d_method;
  }
  return nullptr;
}

PyObject* compare(PyObject* left, PyObject* right, int op) {
  if ((op != Py_EQ && op != Py_NE) || !THPDevice_Check(left) ||
      !THPDevice_Check(right)) {
    return compare_devices(left, right, op);
  }
  const bool equal = ours_for(reinterpret_cast<THPDevice*>(left)->device) ==
                     ours_for(reinterpret_cast<THPDevice*>(right)->device);
  return PyBool_FromLong(static_cast<long>(equal == (op == Py_EQ)));
}

Py_hash_t hash(PyObject* device) {
  const auto value = std::hash<c10::Device>{}(
      ours_for(reinterpret_cast<THPDevice*>(device)->device));
  return static_cast<Py_hash_t>(
      value % std::numeric_limits<Py_hash_t>::max()); // -1 is an error
}

} // namespace

void alias_cuda_in(py::handle callable, Unsaid unsaid) {
  if (PyMethodDef* const definition = definition_of(callable.ptr())) {
    if ((definition->ml_flags & (METH_VARARGS | METH_KEYWORDS)) !=
        (METH_VARARGS | METH_KEYWORDS)) {
      throw py::type_error("alias_cuda_in: the function takes no keywords");
    }
    // CPython keeps functions of all kinds under one type.
    // NOLINTBEGIN(bugprone-casting-through-void)
    const auto original = reinterpret_cast<PyCFunctionWithKeywords>(
        reinterpret_cast<void*>(definition->ml_meth));
    static constexpr auto kEntries =
        function_entries(std::make_index_sequence<kMostFunctions>());
    if (const auto entry = replace(replaced_functions, kEntries,
                                   {original, definition, unsaid})) {
      definition->ml_meth =
          reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(entry));
    }
    // NOLINTEND(bugprone-casting-through-void)
    return;
  }
  if (PyType_Check(callable.ptr())) {
    auto* const type = reinterpret_cast<PyTypeObject*>(callable.ptr());
    static constexpr auto kEntries =
        constructor_entries(std::make_index_sequence<kMostTypes>());
    if (const auto entry =
            replace(replaced_types, kEntries, {type->tp_new, type, unsaid})) {
      type->tp_new = entry;
      PyType_Modified(type);
    }
    return;
  }
  throw py::type_error("alias_cuda_in takes functions and types of torch's");
}

void equate_cuda_devices() {
  if (compare_devices != nullptr) {
    return;
  }
  compare_devices = std::exchange(THPDeviceType.tp_richcompare, &compare);
  THPDeviceType.tp_hash = &hash;
  PyType_Modified(&THPDeviceType);
}

} // namespace chameleon::python
