// Alias tensors: one storage for each outer one, shown where its bytes are
// while a call has them pinned, and nothing of it afterwards.
#include "kernels/alias_tensors.h"

#include "backend/torch/device_allocator.h"
#include "backend/torch/stream.h"
#include "kernels/layouts/nested_parts.h"
#include "tests/cpp/kernels/device_fixture.h"

namespace chameleon::kernels {
namespace {

using memory::Access;

std::size_t add(AliasTensorSet& set, const at::Tensor& outer,
                bool writes = false, bool overwrites = false) {
  return set.add(*outer.unsafeGetTensorImpl(), writes, overwrites);
}

c10::StorageImpl& storage_of(const at::Tensor& tensor) {
  return *tensor.storage().unsafeGetStorageImpl();
}

// True: it raises, with a message that has `words`.
template <typename Action>
bool raises(std::string_view words, Action action) {
  try {
    action();
  } catch (const c10::Error& error) {
    return std::string_view(error.what_without_backtrace()).find(words) !=
           std::string_view::npos;
  }
  return false;
}

class AliasTensorsTest : public DeviceTest {
 protected:
  // Collected, pinned and bound, as long as it lives.
  class Call {
   public:
    explicit Call(const std::vector<at::Tensor>& operands,
                  bool overwrites = false) {
      for (const at::Tensor& each : operands) add(set, each, true, overwrites);
      const auto pins = set.operands();
      EXPECT_TRUE(pager()
                      .begin(call, backend::current_stream(0),
                             {pins.data(), pins.size()}, nullptr, "a test",
                             true)
                      .ok());
      set.bind();
    }
    ~Call() {
      set.unbind();
      pager().end(call);
    }
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;

    at::Tensor alias(const at::Tensor& outer, std::size_t entry = 0) {
      return at::Tensor(set.alias_tensor(*outer.unsafeGetTensorImpl(), entry));
    }

    AliasTensorSet set;
    memory::Call call;
  };

  static std::vector<Access> accesses(const AliasTensorSet& set) {
    std::vector<Access> accesses;
    for (const memory::Operand& each : set.operands()) {
      accesses.push_back(each.access);
    }
    return accesses;
  }
};

// ---- what is collected -----------------------------------------------------

TEST_F(AliasTensorsTest, OneStorageIsOneEntryWrittenIfAnyOperandIs) {
  const at::Tensor a = filled({2, 3}, 1);
  const at::Tensor b = filled({2, 3}, 2);
  AliasTensorSet set;
  EXPECT_EQ(add(set, a), 0U);
  EXPECT_EQ(add(set, b, true), 1U);
  EXPECT_EQ(accesses(set), (std::vector{Access::kRead, Access::kWrite}));
  EXPECT_EQ(add(set, a.view({6}), true), 0U);
  EXPECT_EQ(add(set, b.t()), 1U);
  EXPECT_EQ(accesses(set), (std::vector{Access::kWrite, Access::kWrite}));
  ASSERT_EQ(set.entries().size(), 2U);
  EXPECT_EQ(set.entries()[0].block, block(a));
  EXPECT_EQ(set.entries()[1].block, block(b));
}

TEST_F(AliasTensorsTest, WhatIsOverwrittenIsAllOfItsStorageAndOneOperand) {
  const at::Tensor a = filled({4, 6}, 1);
  const at::Tensor b = filled({4, 6}, 1);
  AliasTensorSet set;
  add(set, a, true, true);
  add(set, b.narrow(0, 0, 3), true, true);
  EXPECT_EQ(accesses(set), (std::vector{Access::kOverwrite, Access::kWrite}));
  add(set, a); // may be read
  EXPECT_EQ(accesses(set), (std::vector{Access::kWrite, Access::kWrite}));
  AliasTensorSet turned;
  add(turned, a);
  add(turned, a, true, true);
  EXPECT_EQ(accesses(turned), std::vector{Access::kWrite});
}

TEST_F(AliasTensorsTest, WithoutBytesThereIsNothingToPin) {
  const at::Tensor none = filled({0, 3}, 1);
  const at::Tensor some = filled({2}, 1);
  Call call({none, some, filled({0}, 1)});
  EXPECT_EQ(call.set.entries().size(), 3U);
  EXPECT_EQ(call.set.entries()[0].block, nullptr);
  ASSERT_EQ(call.set.operands().size(), 1U);
  EXPECT_EQ(call.set.operands()[0].block, block(some));
  EXPECT_EQ(call.alias(none).sizes(), at::IntArrayRef({0, 3}));
  EXPECT_EQ(call.alias(none).const_data_ptr(), nullptr);
}

TEST_F(AliasTensorsTest, LongListsAreFoundAgain) {
  for (const std::size_t count : {16, 17, 32, 33, 300}) {
    const std::vector<at::Tensor> xs = list(count, {2, 2});
    AliasTensorSet set;
    for (std::size_t i = 0; i < count; ++i) ASSERT_EQ(add(set, xs[i]), i);
    for (std::size_t i = 0; i < count; ++i) {
      ASSERT_EQ(add(set, xs[i].view({4}), i % 2 == 0), i) << count;
    }
    ASSERT_EQ(set.entries().size(), count);
    for (std::size_t i = 0; i < count; ++i) {
      EXPECT_EQ(set.entries()[i].block, block(xs[i])) << i;
      EXPECT_EQ(set.entries()[i].writes, i % 2 == 0) << i;
    }
  }
}

TEST_F(AliasTensorsTest, MemoryThatIsNotTheDevicesIsRefused) {
  float value = 1;
  const at::Tensor foreign(
      make_outer(*at::ones({1}).unsafeGetTensorImpl(),
                 c10::Storage(c10::Storage::use_byte_size_t(), sizeof(value),
                              c10::DataPtr(&value, chameleon())),
                 chameleon()));
  AliasTensorSet set;
  EXPECT_TRUE(
      raises("was not allocated by the device", [&] { add(set, foreign); }));
  const at::Tensor gone = filled({4}, 1);
  backend::resize_storage(storage_of(gone), 0);
  EXPECT_TRUE(raises("resized to 0 bytes", [&] { add(set, gone); }));
  EXPECT_EQ(add(set, gone.narrow(0, 0, 0)), 0U); // no element is missed
  EXPECT_EQ(set.entries().size(), 1U);
}

// ---- while it is bound -----------------------------------------------------

TEST_F(AliasTensorsTest, ShowsTheBytesWhereTheyAre) {
  const at::Tensor a = filled({2, 3}, 4);
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(pager().evictAll().ok());
    Call call({a});
    const at::Tensor alias = call.alias(a);
    EXPECT_EQ(alias.const_data_ptr(), block(a)->device_address);
    EXPECT_EQ(alias.storage().nbytes(), a.storage().nbytes());
    EXPECT_EQ(alias.device(), c10::Device(at::kCPU));
    EXPECT_TRUE(alias.equal(at::full({2, 3}, 4 + i)));
    at::Tensor(alias).add_(1);
  }
  ASSERT_TRUE(pager().evictAll().ok());
  EXPECT_TRUE(holds(a, 6));
}

TEST_F(AliasTensorsTest, ViewsKeepWhatTheyShow) {
  const at::Tensor a = filled({4, 6}, 1);
  std::vector<at::Tensor> views{a, a.t(), a.narrow(1, 2, 3), a[0][0]};
  views.push_back(a.as_strided({2, 2}, {7, 3}, 5));
  views.push_back(a.view(at::kInt));
  views.push_back(at::_neg_view(a));
  Call call(views);
  ASSERT_EQ(call.set.entries().size(), 1U);
  const AliasTensorSet::Entry& entry = call.set.entries()[0];
  for (const at::Tensor& view : views) {
    const at::Tensor alias = call.alias(view);
    EXPECT_EQ(alias.sizes(), view.sizes());
    EXPECT_EQ(alias.strides(), view.strides());
    EXPECT_EQ(alias.storage_offset(), view.storage_offset());
    EXPECT_EQ(alias.dtype(), view.dtype());
    EXPECT_EQ(alias.is_neg(), view.is_neg());
    EXPECT_EQ(&storage_of(alias), entry.alias.get());
    EXPECT_EQ(call.set.find(storage_of(alias)), &entry);
  }
  EXPECT_EQ(call.set.find(storage_of(a)), nullptr);
}

TEST_F(AliasTensorsTest, OneTensorIsOneAliasTensor) {
  const at::Tensor a = filled({4, 6}, 1);
  const at::Tensor view = a.view({24});
  Call call({a, a, view});
  const at::Tensor alias = call.alias(a);
  EXPECT_TRUE(call.alias(a).is_same(alias));
  const at::Tensor of_view = call.alias(view);
  EXPECT_FALSE(of_view.is_same(alias));
  EXPECT_TRUE(of_view.is_alias_of(alias));
  EXPECT_TRUE(call.alias(view).is_same(of_view));
}

TEST_F(AliasTensorsTest, NestedTensorsStayNested) {
  const at::Tensor a =
      at::_nested_tensor_from_tensor_list({at::ones({2, 3}), at::ones({4, 3})})
          .to(chameleon());
  Call call({a});
  const at::Tensor alias = call.alias(a);
  EXPECT_TRUE(alias.is_nested());
  EXPECT_EQ(alias.device(), c10::Device(at::kCPU));
  EXPECT_EQ(alias.numel(), 18);
  EXPECT_TRUE(alias._nested_tensor_size().equal(a._nested_tensor_size()));
}

// ---- afterwards ------------------------------------------------------------

TEST_F(AliasTensorsTest, WhoKeptAnAliasTensorIsToldSo) {
  const at::Tensor a = filled({4}, 1);
  at::Tensor kept;
  {
    Call call({a});
    kept = call.alias(a);
    call.set.unbind();
    EXPECT_EQ(call.set.entries()[0].alias, nullptr);
  } // once more
  EXPECT_EQ(kept.storage().nbytes(), 0U);
  const std::string_view sentence = "which has ended: clone() it inside";
  EXPECT_TRUE(raises(sentence, [&] { kept.mutable_data_ptr(); }));
  EXPECT_TRUE(raises(sentence, [&] { kept.const_data_ptr(); }));
  EXPECT_TRUE(raises(sentence, [&] { kept.sum(); }));
  Call next({a});
  const at::Tensor alias = next.alias(a);
  EXPECT_FALSE(alias.is_same(kept));
  EXPECT_NE(&storage_of(alias), &storage_of(kept));
  EXPECT_TRUE(alias.equal(at::ones({4})));
}

// The decoys take the memory of what is not recycled.
TEST_F(AliasTensorsTest, ShellsAreRecycledWhereNobodyHoldsThem) {
  const at::Tensor a = filled({4}, 1);
  const auto shown = [&](auto use) {
    Call call({a});
    const at::Tensor alias = call.alias(a);
    use(alias);
    return std::pair<const void*, const void*>(alias.unsafeGetTensorImpl(),
                                               &storage_of(alias));
  };
  const auto first = shown([](const at::Tensor&) {});
  const std::vector<at::Tensor> decoys{new_alias_tensor(), new_alias_tensor()};
  EXPECT_EQ(shown([](const at::Tensor&) {}), first);
  // What was attached to a tensor is no other tensor's.
  shown([](const at::Tensor& alias) { alias.requires_grad_(); });
  shown([](const at::Tensor& alias) { EXPECT_FALSE(alias.requires_grad()); });
  c10::Storage kept;
  shown([&](const at::Tensor& alias) { kept = alias.storage(); });
  EXPECT_NE(shown([](const at::Tensor&) {}).second,
            kept.unsafeGetStorageImpl());
}

TEST_F(AliasTensorsTest, ClosedIsMoreThanLetGo) {
  const at::Tensor alias = new_alias_tensor();
  EXPECT_EQ(alias.device(), c10::Device(at::kCPU));
  c10::StorageImpl& storage = storage_of(alias);
  storage.set_data_ptr_noswap(c10::DataPtr(&storage, at::kCPU));
  storage.set_nbytes(4);
  let_go(storage);
  EXPECT_EQ(storage.nbytes(), 0U);
  EXPECT_EQ(storage.data(), nullptr);
  close(storage);
  EXPECT_TRUE(
      raises("keep the chameleon tensor", [&] { storage.mutable_data(); }));
}

// ---- overwrites ------------------------------------------------------------

TEST_F(AliasTensorsTest, AllOfAStorageIsEachByteOnce) {
  const auto is_all = [](const at::Tensor& tensor) {
    return is_all_of_storage(*tensor.unsafeGetTensorImpl());
  };
  const at::Tensor a = at::ones({4, 6});
  for (const at::Tensor& all :
       {a, a.t(), a.view({2, 12}), a.view(at::kByte), at::ones({0}),
        at::ones({2, 3, 4, 5}).contiguous(at::MemoryFormat::ChannelsLast)}) {
    EXPECT_TRUE(is_all(all)) << all.sizes();
  }
  for (const at::Tensor& part :
       {a.narrow(0, 0, 3), a.narrow(0, 1, 3), a.narrow(1, 0, 3),
        a.expand({2, 4, 6}), at::ones({4}).as_strided({2, 2}, {1, 1})}) {
    EXPECT_FALSE(is_all(part)) << part.sizes();
  }
}

TEST_F(AliasTensorsTest, WhatASmallerResultLeavesKeepsItsValue) {
  const at::Tensor a = filled({16}, 7);
  ASSERT_TRUE(pager().evictAll().ok());
  {
    Call call({a}, true);
    at::Tensor alias = call.alias(a);
    alias.resize_({4}).fill_(1);
    keep_rest(call.call, *block(a), *alias.unsafeGetTensorImpl());
  }
  EXPECT_TRUE(holds(a.narrow(0, 0, 4), 1));
  EXPECT_TRUE(holds(a.narrow(0, 4, 12), 7));
}

// ---- tensors without a call ------------------------------------------------

TEST_F(AliasTensorsTest, MetadataTensorsHaveNoBytes) {
  const at::Tensor a = filled({4, 6}, 1, at::kHalf).t().narrow(0, 2, 3);
  const at::Tensor native = make_metadata_tensor(a);
  const at::Tensor cuda = make_cuda_metadata_tensor(a);
  EXPECT_EQ(native.device(), c10::Device(at::kCPU));
  EXPECT_EQ(cuda.device(), c10::Device(at::kCUDA, 0));
  for (const at::Tensor& each : {native, cuda}) {
    EXPECT_EQ(each.sizes(), a.sizes());
    EXPECT_EQ(each.strides(), a.strides());
    EXPECT_EQ(each.storage_offset(), a.storage_offset());
    EXPECT_EQ(each.scalar_type(), at::kHalf);
    EXPECT_EQ(each.storage().nbytes(), 0U);
  }
}

TEST_F(AliasTensorsTest, OuterTensorsAreAsTheNativeOneOnAnotherStorage) {
  const at::Tensor like = at::ones({4, 6}).t().narrow(0, 2, 3);
  const at::Tensor outer(make_outer(*like.unsafeGetTensorImpl(),
                                    backend::make_storage(4 * 24, 0),
                                    chameleon()));
  EXPECT_EQ(outer.device(), chameleon());
  EXPECT_EQ(outer.key_set(), filled({1}, 1).key_set());
  EXPECT_EQ(outer.sizes(), like.sizes());
  EXPECT_EQ(outer.strides(), like.strides());
  EXPECT_EQ(outer.storage_offset(), 2);
  at::Tensor(outer).fill_(3);
  EXPECT_TRUE(holds(outer, 3));
}

} // namespace
} // namespace chameleon::kernels
