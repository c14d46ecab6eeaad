// Sparse tensors of the device, taken apart and put together again: COO ones
// and the four kinds of compressed ones.
#include "kernels/layouts/sparse_parts.h"

#include "kernels/alias_tensors.h"
#include "tests/cpp/kernels/device_fixture.h"

namespace chameleon::kernels {
namespace {

constexpr std::array kCompressed{at::kSparseCsr, at::kSparseCsc, at::kSparseBsr,
                                 at::kSparseBsc};

const c10::TensorImpl& impl(const at::Tensor& tensor) {
  return *tensor.unsafeGetTensorImpl();
}

class SparsePartsTest : public DeviceTest {
 protected:
  void TearDown() override {
    EXPECT_EQ(pager().stats().pinned_bytes, 0);
    DeviceTest::TearDown();
  }

  // 4 x 6, on the CPU; block (0, 1) of 2 x 2 is all there is, or (1, 2) too.
  static at::Tensor dense(double value, bool more = false) {
    at::Tensor matrix = at::zeros({4, 6});
    matrix.narrow(0, 0, 2).narrow(1, 2, 2).fill_(value);
    if (more) matrix[3][5] = value + 1;
    return matrix;
  }
  static at::Tensor sparse(const at::Tensor& dense, at::Layout layout) {
    const bool blocked = layout == at::kSparseBsr || layout == at::kSparseBsc;
    return dense.to_sparse(layout, blocked ? at::OptionalIntArrayRef({2, 2})
                                           : at::OptionalIntArrayRef());
  }
  // On the device.
  static at::Tensor ours(at::Layout layout, double value = 5,
                         bool more = false) {
    return sparse(dense(value, more).to(chameleon()), layout);
  }
  // Two entries are of one place.
  static at::Tensor uncoalesced() {
    const at::Tensor indices =
        at::tensor({1, 1, 2, 2, 2, 0}, at::kLong).view({2, 3});
    return at::_sparse_coo_tensor_unsafe(indices.to(chameleon()),
                                         filled({3, 2}, 7), {4, 6, 2});
  }
  static std::vector<at::Tensor> everyKind() {
    std::vector<at::Tensor> kinds{ours(at::kSparse), uncoalesced()};
    for (const at::Layout layout : kCompressed) kinds.push_back(ours(layout));
    return kinds;
  }
  // Same kind, same shape, same values; where `b` is, may differ.
  static void expectAlike(const at::Tensor& a, const at::Tensor& b) {
    EXPECT_EQ(a.layout(), b.layout());
    EXPECT_EQ(a.dtype(), b.dtype());
    EXPECT_EQ(a.sizes(), b.sizes());
    EXPECT_EQ(a.dim(), b.dim());
    EXPECT_EQ(a.sparse_dim(), b.sparse_dim());
    EXPECT_EQ(a.dense_dim(), b.dense_dim());
    EXPECT_EQ(a._nnz(), b._nnz());
    if (a.layout() == at::kSparse) {
      EXPECT_EQ(a.is_coalesced(), b.is_coalesced());
    }
    EXPECT_TRUE(a.to_dense().cpu().equal(b.to_dense().cpu()));
  }
  static void expectSame(const SparseParts& a, const SparseParts& b) {
    ASSERT_EQ(a.size(), b.size());
    for (std::size_t i = 0; i < a.size(); ++i) {
      EXPECT_TRUE(a[i].is_same(b[i])) << i;
    }
  }
};

TEST_F(SparsePartsTest, KindsAreKnown) {
  EXPECT_FALSE(is_sparse(impl(filled({4, 6}, 1))));
  EXPECT_FALSE(is_compressed(impl(filled({4, 6}, 1))));
  EXPECT_TRUE(is_sparse(impl(ours(at::kSparse))));
  EXPECT_FALSE(is_compressed(impl(ours(at::kSparse))));
  for (const at::Layout layout : kCompressed) {
    EXPECT_TRUE(is_sparse(impl(ours(layout)))) << layout;
    EXPECT_TRUE(is_compressed(impl(ours(layout)))) << layout;
  }
  EXPECT_EQ(sparse_dispatch_key(false),
            c10::DispatchKeySet(c10::DispatchKey::SparseCPU));
  EXPECT_EQ(sparse_dispatch_key(true),
            c10::DispatchKeySet(c10::DispatchKey::SparseCsrCPU));
}

// ---- apart -----------------------------------------------------------------

TEST_F(SparsePartsTest, IndicesComeBeforeValues) {
  const SparseParts coo = parts_of(impl(uncoalesced()));
  ASSERT_EQ(coo.size(), 2U);
  EXPECT_EQ(coo[0].sizes(), at::IntArrayRef({2, 3}));
  EXPECT_EQ(coo[0].scalar_type(), at::kLong);
  EXPECT_EQ(coo[1].sizes(), at::IntArrayRef({3, 2}));
  EXPECT_TRUE(holds(coo[1], 7));
  // A row more than rows, or a column more than columns, or blocks of them.
  const std::vector<std::int64_t> lines{5, 7, 3, 4};
  for (std::size_t i = 0; i < kCompressed.size(); ++i) {
    const at::Tensor native = sparse(dense(5), kCompressed[i]);
    const SparseParts parts = parts_of(impl(ours(kCompressed[i])));
    const SparseParts natives = parts_of(impl(native));
    ASSERT_EQ(parts.size(), 3U);
    EXPECT_EQ(parts[0].sizes(), at::IntArrayRef(lines[i]));
    EXPECT_EQ(parts[1].sizes(), at::IntArrayRef(native._nnz()));
    EXPECT_TRUE(holds(parts[2], 5));
    for (std::size_t part = 0; part < 3; ++part) {
      EXPECT_EQ(parts[part].device(), chameleon());
      EXPECT_TRUE(parts[part].cpu().equal(natives[part])) << part;
    }
  }
}

TEST_F(SparsePartsTest, TakingPartsLeavesNone) {
  for (at::Tensor& tensor : everyKind()) {
    const SparseParts before = parts_of(impl(tensor));
    const SparseParts taken = take_parts(*tensor.unsafeGetTensorImpl());
    expectSame(taken, before);
    for (const at::Tensor& part : parts_of(impl(tensor))) {
      EXPECT_FALSE(part.defined());
    }
  }
}

TEST_F(SparsePartsTest, WhatIsTakenApartIsFreedWithItsParts) {
  const at::Tensor tensor = ours(at::kSparse);
  const std::int64_t bytes = pager().stats().logical_bytes;
  EXPECT_EQ(bytes, 4 * (2 * 8 + 4));
  {
    const SparseParts taken = take_parts(*tensor.unsafeGetTensorImpl());
    EXPECT_EQ(pager().stats().logical_bytes, bytes);
  }
  EXPECT_EQ(pager().stats().logical_bytes, 0);
}

// ---- together --------------------------------------------------------------

TEST_F(SparsePartsTest, WhatIsMadeOfPartsIsAlike) {
  for (const at::Tensor& tensor : everyKind()) {
    const SparseParts parts = parts_of(impl(tensor));
    const at::Tensor made = make_sparse(impl(tensor), parts);
    EXPECT_FALSE(made.is_same(tensor));
    EXPECT_EQ(made.device(), chameleon());
    EXPECT_EQ(made.key_set(), tensor.key_set());
    expectSame(parts_of(impl(made)), parts);
    expectAlike(made, tensor);
  }
}

TEST_F(SparsePartsTest, ItIsWhereItsPartsAre) {
  for (const at::Tensor& tensor : everyKind()) {
    SparseParts parts;
    for (const at::Tensor& part : parts_of(impl(tensor))) {
      parts.push_back(part.cpu());
    }
    const at::Tensor native = make_sparse(impl(tensor), parts);
    EXPECT_EQ(native.device(), c10::Device(at::kCPU));
    EXPECT_EQ(native.key_set(), tensor.cpu().key_set());
    expectAlike(native, tensor);
    // And back: as the results of a kernel become the device's.
    SparseParts back;
    for (const at::Tensor& part : parts) back.push_back(part.to(chameleon()));
    const at::Tensor outer = make_sparse(impl(native), back);
    EXPECT_EQ(outer.key_set(), tensor.key_set());
    EXPECT_EQ(outer.device(), chameleon());
    expectAlike(outer, tensor);
  }
}

// Parts of a device that there is not: they have no bytes.
TEST_F(SparsePartsTest, ItHasTheIndexOfItsParts) {
  const c10::Device second(backend::kChameleon, 1);
  const at::Tensor tensor = ours(at::kSparse);
  SparseParts parts;
  for (const at::Tensor& part : parts_of(impl(tensor))) {
    const c10::Storage storage(c10::Storage::use_byte_size_t(), 0,
                               c10::DataPtr(nullptr, second));
    parts.emplace_back(make_outer(impl(part), storage, second));
  }
  EXPECT_EQ(make_sparse(impl(tensor), parts).device(), second);
}

TEST_F(SparsePartsTest, AnEmptyOneHasPartsToo) {
  const at::Tensor none = at::zeros({4, 6}).to_sparse();
  SparseParts parts;
  for (const at::Tensor& part : parts_of(impl(none))) {
    parts.push_back(part.to(chameleon()));
  }
  const at::Tensor made = make_sparse(impl(none), parts);
  EXPECT_EQ(made.device(), chameleon());
  EXPECT_EQ(made._nnz(), 0);
  expectAlike(made, none);
}

TEST_F(SparsePartsTest, ATensorShowsWhatAnOpWrote) {
  for (const at::Layout layout :
       {at::kSparse, at::kSparseCsr, at::kSparseCsc, at::kSparseBsr}) {
    const at::Tensor tensor = ours(layout);
    const at::Tensor other = ours(layout, 8, true);
    show_sparse(impl(other), *tensor.unsafeGetTensorImpl(),
                parts_of(impl(other)));
    expectSame(parts_of(impl(tensor)), parts_of(impl(other)));
    expectAlike(tensor, other);
    EXPECT_EQ(tensor.device(), chameleon());
  }
}

TEST_F(SparsePartsTest, AnOpMayChangeSizesFlagsAndTheKindOfCompression) {
  const at::Tensor coo = ours(at::kSparse);
  ASSERT_TRUE(coo.is_coalesced());
  const at::Tensor other = uncoalesced(); // of three dimensions, one dense
  show_sparse(impl(other), *coo.unsafeGetTensorImpl(), parts_of(impl(other)));
  EXPECT_EQ(coo.sizes(), at::IntArrayRef({4, 6, 2}));
  EXPECT_EQ(coo.dense_dim(), 1);
  EXPECT_FALSE(coo.is_coalesced());
  const at::Tensor csr = ours(at::kSparseCsr);
  const at::Tensor csc = ours(at::kSparseCsc, 9);
  show_sparse(impl(csc), *csr.unsafeGetTensorImpl(), parts_of(impl(csc)));
  expectAlike(csr, csc);
}

// ---- copies ----------------------------------------------------------------

TEST_F(SparsePartsTest, ACopyShowsTheSameAndStaysItself) {
  for (const at::Layout layout :
       {at::kSparse, at::kSparseCsr, at::kSparseBsc}) {
    const at::Tensor from = ours(layout, 8, true);
    at::Tensor to = ours(layout);
    to.requires_grad_();
    to.unsafeGetTensorImpl()->bump_version();
    const auto version = to._version();
    ASSERT_NE(version, from._version());
    copy_sparse(impl(from), *to.unsafeGetTensorImpl());
    EXPECT_EQ(to._version(), version);
    EXPECT_TRUE(to.requires_grad());
    EXPECT_FALSE(from.requires_grad());
    EXPECT_EQ(to.device(), chameleon());
    EXPECT_EQ(to.key_set(), from.key_set());
    expectSame(parts_of(impl(to)), parts_of(impl(from)));
    expectAlike(to.detach(), from);
  }
}

} // namespace
} // namespace chameleon::kernels
