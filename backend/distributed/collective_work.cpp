#include "backend/distributed/collective_work.h"

#include <utility>

namespace chameleon::distributed {

CollectiveWork::CollectiveWork(int rank, c10d::OpType type,
                               c10::intrusive_ptr<c10d::Work> inner,
                               std::shared_ptr<Collective> collective,
                               Ends ends)
    : Work(rank, type),
      inner_(std::move(inner)),
      collective_(std::move(collective)),
      ends_(ends) {}

CollectiveWork::~CollectiveWork() {
  inner_.reset(); // first: from then on it touches no operand
}

bool CollectiveWork::isCompleted() {
  if (!inner_->isCompleted()) return false;
  if (inner_->exception() == nullptr) collective_->finish();
  return true;
}

bool CollectiveWork::isSuccess() const { return inner_->isSuccess(); }

std::exception_ptr CollectiveWork::exception() const {
  return inner_->exception();
}

int CollectiveWork::sourceRank() const { return inner_->sourceRank(); }

std::vector<at::Tensor> CollectiveWork::result() {
  return collective_->results();
}

void CollectiveWork::synchronize() {
  const memory::ExchangeSpan waits = collective_->beginWait();
  inner_->synchronize();
  if (ends_ == Ends::kOnStream) collective_->finish();
}

bool CollectiveWork::wait(std::chrono::milliseconds timeout) {
  const memory::ExchangeSpan waits = collective_->beginWait();
  // Where it throws, a receive may still be under way: the operands stay until
  // the work is destroyed, or says by its future that it is done.
  const bool done = inner_->wait(timeout);
  collective_->finish();
  return done;
}

void CollectiveWork::blockCurrentStream() {
  const memory::ExchangeSpan waits = collective_->beginWait();
  inner_->blockCurrentStream();
  if (ends_ == Ends::kOnStream) collective_->finish();
}

void CollectiveWork::abort() { inner_->abort(); }

c10::intrusive_ptr<c10::ivalue::Future> CollectiveWork::getFuture() {
  if (!collective_->isFinished() && ends_ != Ends::kByItself) {
    // As natively: gloo has none for these, and NCCL's is one of streams.
    inner_->getFuture();
    synchronize();
  }
  return collective_->future();
}

c10::intrusive_ptr<c10::ivalue::Future> CollectiveWork::getFutureResult() {
  return inner_->getFutureResult();
}

float CollectiveWork::getDuration() const { return inner_->getDuration(); }

std::uint64_t CollectiveWork::getSequencenumber() const {
  return inner_->getSequencenumber();
}

} // namespace chameleon::distributed
