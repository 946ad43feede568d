#include "cc/lib/live_tokens.h"

#include <cstdint>
#include <iterator>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

namespace tf_cg_ops {
namespace {

// A pending call of Python's C interface, and the function that adds one.
using PendingCall = int (*)(void*);
using AddPendingCall = int (*)(PendingCall, void*);

struct Tokens {
  std::mutex mutex;
  int64_t next_id = 1;
  std::map<int64_t, int64_t> live;                    // The count by the first number.
  std::vector<std::pair<int64_t, int64_t>> released;  // First numbers and counts.
  AddPendingCall add_pending_call = nullptr;
  PendingCall on_release = nullptr;
  bool is_pending = false;
};

// Never destroyed, because tokens can outlive static variables.
Tokens& AllTokens() {
  static Tokens* const tokens = new Tokens;
  return *tokens;
}

int64_t NewIds(int64_t count) {
  Tokens& tokens = AllTokens();
  const std::lock_guard<std::mutex> lock(tokens.mutex);
  const int64_t first_id = tokens.next_id;
  tokens.next_id += count;
  if (count > 0) tokens.live[first_id] = count;
  return first_id;
}

}  // namespace

Token::Token(int64_t count) : count_(count), first_id_(NewIds(count)) {}

Token::~Token() {
  if (count_ == 0) return;
  Tokens& tokens = AllTokens();
  AddPendingCall add_pending_call = nullptr;
  PendingCall on_release = nullptr;
  {
    const std::lock_guard<std::mutex> lock(tokens.mutex);
    tokens.live.erase(first_id_);
    tokens.released.emplace_back(first_id_, count_);
    if (!tokens.is_pending && tokens.add_pending_call != nullptr) {
      tokens.is_pending = true;
      add_pending_call = tokens.add_pending_call;
      on_release = tokens.on_release;
    }
  }
  if (add_pending_call == nullptr || add_pending_call(on_release, nullptr) == 0) return;
  // The queue of pending calls is full: the next token tries again.
  const std::lock_guard<std::mutex> lock(tokens.mutex);
  tokens.is_pending = false;
}

}  // namespace tf_cg_ops

// For Python: `on_release` runs some time after a token has died, through `add_pending_call`. Pass null to stop that.
extern "C" void tf_cg_ops_on_released_token(int (*add_pending_call)(int (*)(void*), void*), int (*on_release)(void*)) {
  tf_cg_ops::Tokens& tokens = tf_cg_ops::AllTokens();
  const std::lock_guard<std::mutex> lock(tokens.mutex);
  tokens.add_pending_call = add_pending_call;
  tokens.on_release = on_release;
}

// For Python: writes the numbers of a token that died, and returns how many they are; 0 if there is none.
extern "C" int64_t tf_cg_ops_take_released_token(int64_t* first_id) {
  tf_cg_ops::Tokens& tokens = tf_cg_ops::AllTokens();
  const std::lock_guard<std::mutex> lock(tokens.mutex);
  tokens.is_pending = false;
  if (tokens.released.empty()) return 0;
  const auto [first, count] = tokens.released.back();
  tokens.released.pop_back();
  *first_id = first;
  return count;
}

// For Python: whether the token with this number is alive.
extern "C" int tf_cg_ops_token_is_live(int64_t id) {
  tf_cg_ops::Tokens& tokens = tf_cg_ops::AllTokens();
  const std::lock_guard<std::mutex> lock(tokens.mutex);
  const auto after = tokens.live.upper_bound(id);
  if (after == tokens.live.begin()) return 0;
  const auto [first, count] = *std::prev(after);
  return id < first + count;
}
