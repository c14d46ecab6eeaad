// The stand-in for CUDA's libraries, what is of cuBLAS and cuDNN: the handles
// that PyTorch makes for every thread, and how cuDNN lays the weights of
// recurrent layers out, which PyTorch's composites ask above the kernels. No
// kernel of theirs is here: tests/emulated_cuda.py computes in their place.
//
// Spelled with plain types, in the layout that the libraries' headers have:
// the headers need not be there.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdio>
#include <cstdlib>

#include "tests/cpp/support/emulated_cuda.h"

namespace {

constexpr int kSuccess = 0;      // of both libraries
constexpr int kBadParameter = 3; // cuDNN's is another number, and no success

struct Handle {
  cudaStream_t stream = nullptr;
  int mode = 0; // of mathematics
  int pointers = 0;
};

// ---- cuDNN's recurrent layers ----------------------------------------------

enum Mode { kRelu, kTanh, kLstm, kGru };

struct TensorDescriptor {
  int type = 0, dims = 0;
  std::array<int, 8> sizes{}, strides{};
};

struct RnnDescriptor {
  int mode = 0, type = 0;
  std::size_t directions = 1, layers = 1;
  std::size_t input = 0, hidden = 0, projected = 0; // what a step hands on

  bool projects() const { return projected != hidden; }
  std::size_t gates() const { return mode == kLstm ? 4 : mode == kGru ? 3 : 1; }
  std::size_t bytesOfElement() const {
    constexpr int kDouble = 1, kHalf = 2, kBfloat16 = 9;
    return type == kDouble ? 8 : type == kHalf || type == kBfloat16 ? 2 : 4;
  }
  std::size_t inputOf(std::size_t layer) const {
    return layer < directions ? input : projected * directions;
  }
  // Elements of all matrices of one layer in one direction.
  std::size_t matricesOf(std::size_t layer) const {
    return gates() * hidden * (inputOf(layer) + projected) +
           (projects() ? hidden * projected : 0);
  }
  std::size_t matricesBefore(std::size_t layer) const {
    std::size_t count = 0;
    for (std::size_t i = 0; i < layer; ++i) count += matricesOf(i);
    return count;
  }
  std::size_t biasesOf() const { return 2 * gates() * hidden; }
  std::size_t elements() const {
    return matricesBefore(layers * directions) +
           layers * directions * biasesOf();
  }
};

TensorDescriptor column(int type, std::size_t rows, std::size_t columns) {
  const int rows_ = static_cast<int>(rows);
  const int columns_ = static_cast<int>(columns);
  return {type, 3, {1, rows_, columns_}, {rows_ * columns_, columns_, 1}};
}

template <class T>
int make(T** made) {
  *made = new T;
  return kSuccess;
}
template <class T>
int drop(T* made) {
  delete made;
  return kSuccess;
}

} // namespace

// NOLINTBEGIN(readability-identifier-naming): the libraries' names
// ---- cuBLAS -----------------------------------------------------------

EXPORT int cublasCreate_v2(Handle** handle) { return make(handle); }
EXPORT int cublasDestroy_v2(Handle* handle) { return drop(handle); }
EXPORT int cublasSetStream_v2(Handle* handle, cudaStream_t stream) {
  handle->stream = stream;
  return kSuccess;
}
EXPORT int cublasSetWorkspace_v2(Handle*, void*, std::size_t) {
  return kSuccess;
}
EXPORT int cublasSetMathMode(Handle* handle, int mode) {
  handle->mode = mode;
  return kSuccess;
}
EXPORT int cublasGetMathMode(Handle* handle, int* mode) {
  *mode = handle->mode;
  return kSuccess;
}
EXPORT int cublasSetPointerMode_v2(Handle* handle, int mode) {
  handle->pointers = mode;
  return kSuccess;
}
EXPORT int cublasGetPointerMode_v2(Handle* handle, int* mode) {
  *mode = handle->pointers;
  return kSuccess;
}

// ---- cuDNN -----------------------------------------------------------

EXPORT int cudnnCreate(Handle** handle) { return make(handle); }
EXPORT int cudnnDestroy(Handle* handle) { return drop(handle); }
EXPORT int cudnnSetStream(Handle* handle, cudaStream_t stream) {
  handle->stream = stream;
  return kSuccess;
}
EXPORT int cudnnGetStream(Handle* handle, cudaStream_t* stream) {
  *stream = handle->stream;
  return kSuccess;
}

EXPORT int cudnnCreateTensorDescriptor(TensorDescriptor** made) {
  return make(made);
}
EXPORT int cudnnDestroyTensorDescriptor(TensorDescriptor* made) {
  return drop(made);
}
EXPORT int cudnnSetTensorNdDescriptor(TensorDescriptor* of, int type, int dims,
                                      const int* sizes, const int* strides) {
  *of = {type, dims, {}, {}};
  std::copy_n(sizes, dims, of->sizes.begin());
  std::copy_n(strides, dims, of->strides.begin());
  return kSuccess;
}
EXPORT int cudnnGetTensorNdDescriptor(const TensorDescriptor* of, int most,
                                      int* type, int* dims, int* sizes,
                                      int* strides) {
  *type = of->type;
  *dims = of->dims;
  std::copy_n(of->sizes.begin(), std::min(most, of->dims), sizes);
  std::copy_n(of->strides.begin(), std::min(most, of->dims), strides);
  return kSuccess;
}

// Of dropout only that there is none: with one the op below runs.
EXPORT int cudnnSetDropoutDescriptor(void*, Handle*, float, void*, std::size_t,
                                     unsigned long long) {
  return kSuccess;
}

EXPORT int cudnnCreateRNNDescriptor(RnnDescriptor** made) { return make(made); }
EXPORT int cudnnDestroyRNNDescriptor(RnnDescriptor* made) { return drop(made); }
EXPORT int cudnnSetRNNDescriptor_v8(RnnDescriptor* of, int, int mode, int,
                                    int bidirectional, int, int type, int, int,
                                    int input, int hidden, int projected,
                                    int layers, void*, unsigned) {
  const auto size = [](int value) { return static_cast<std::size_t>(value); };
  *of = {mode,        type,         size(bidirectional) + 1, size(layers),
         size(input), size(hidden), size(projected)};
  return kSuccess;
}
EXPORT int cudnnGetRNNWeightSpaceSize(Handle*, const RnnDescriptor* rnn,
                                      std::size_t* bytes) {
  *bytes = rnn->elements() * rnn->bytesOfElement();
  return kSuccess;
}
// Matrices of all layers, then their biases; of each layer and direction one
// gate after the other, those for the input, then those for the state.
EXPORT int cudnnGetRNNWeightParams(Handle*, const RnnDescriptor* rnn, int which,
                                   std::size_t bytes, char* weights, int line,
                                   TensorDescriptor* matrix,
                                   void** matrix_address,
                                   TensorDescriptor* bias,
                                   void** bias_address) {
  if (bytes < rnn->elements() * rnn->bytesOfElement()) return kBadParameter;
  const auto layer = static_cast<std::size_t>(which);
  const auto gate = static_cast<std::size_t>(line);
  const std::size_t gates = rnn->gates();
  const std::size_t input = rnn->inputOf(layer);
  const auto at = [&](std::size_t element) {
    return weights + element * rnn->bytesOfElement();
  };
  if (matrix != nullptr) {
    const std::size_t begin = rnn->matricesBefore(layer);
    const std::size_t of_state = begin + gates * rnn->hidden * input;
    if (gate < gates) {
      *matrix = column(rnn->type, rnn->hidden, input);
      *matrix_address = at(begin + gate * rnn->hidden * input);
    } else if (gate < 2 * gates) {
      *matrix = column(rnn->type, rnn->hidden, rnn->projected);
      *matrix_address =
          at(of_state + (gate - gates) * rnn->hidden * rnn->projected);
    } else {
      *matrix = column(rnn->type, rnn->projected, rnn->hidden);
      *matrix_address = at(of_state + gates * rnn->hidden * rnn->projected);
    }
  }
  if (bias != nullptr) {
    *bias = column(rnn->type, rnn->hidden, 1);
    *bias_address = at(rnn->matricesBefore(rnn->layers * rnn->directions) +
                       layer * rnn->biasesOf() + gate * rnn->hidden);
  }
  return kSuccess;
}
// NOLINTEND(readability-identifier-naming)
