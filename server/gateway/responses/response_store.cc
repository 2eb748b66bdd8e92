#include "server/gateway/responses/response_store.h"

#include <algorithm>
#include <iterator>

namespace aludel {
namespace {

// What an entry and its places in three maps weigh beside its texts, generously.
constexpr size_t kEntryBytes = 512;

}  // namespace

size_t StoredResponse::bytes() const {
  size_t bytes = kEntryBytes + body.size() + messages.size();
  for (const auto& [id, json] : items) bytes += kEntryBytes + 2 * id.size() + json.size();
  return bytes;
}

void ResponseStore::Put(const std::string& client, const std::string& id, StoredResponse response,
                        absl::Time now) {
  const size_t bytes = response.bytes() + 2 * id.size();
  if (!enabled() || bytes > options_.max_bytes) return;
  const auto kept = std::make_shared<const StoredResponse>(std::move(response));
  absl::MutexLock lock(&mutex_);
  DropOld(now);
  Client& owner = clients_[client];
  owner.entries.push_back({id, kept, bytes, now + options_.max_age});
  const auto entry = std::prev(owner.entries.end());
  owner.bytes += bytes;
  owner.by_id[id] = entry;
  for (size_t i = 0; i < kept->items.size(); ++i) owner.by_item[kept->items[i].first] = {entry, i};
  ++size_;
  bytes_ += bytes;
  MakeRoom();
}

std::shared_ptr<const StoredResponse> ResponseStore::Find(const std::string& client, const std::string& id,
                                                          absl::Time now) {
  absl::MutexLock lock(&mutex_);
  DropOld(now);
  const auto owner = clients_.find(client);
  if (owner == clients_.end()) return nullptr;
  const auto found = owner->second.by_id.find(id);
  return found == owner->second.by_id.end() ? nullptr : found->second->response;
}

std::shared_ptr<const std::string> ResponseStore::FindItem(const std::string& client, const std::string& item,
                                                           absl::Time now) {
  absl::MutexLock lock(&mutex_);
  DropOld(now);
  const auto owner = clients_.find(client);
  if (owner == clients_.end()) return nullptr;
  const auto found = owner->second.by_item.find(item);
  if (found == owner->second.by_item.end()) return nullptr;
  const auto& [entry, place] = found->second;
  return {entry->response, &entry->response->items[place].second};
}

bool ResponseStore::Erase(const std::string& client, const std::string& id, absl::Time now) {
  absl::MutexLock lock(&mutex_);
  DropOld(now);
  const auto owner = clients_.find(client);
  if (owner == clients_.end()) return false;
  const auto found = owner->second.by_id.find(id);
  if (found == owner->second.by_id.end()) return false;
  Remove(&owner->second, found->second);
  if (owner->second.entries.empty()) clients_.erase(owner);
  return true;
}

void ResponseStore::Remove(Client* client, Entries::iterator entry) {
  for (const auto& item : entry->response->items) client->by_item.erase(item.first);
  client->by_id.erase(entry->id);
  client->bytes -= entry->bytes;
  bytes_ -= entry->bytes;
  --size_;
  client->entries.erase(entry);
}

void ResponseStore::DropOld(absl::Time now) {
  for (auto owner = clients_.begin(); owner != clients_.end();) {
    Client& client = owner->second;
    while (!client.entries.empty() && client.entries.front().dies <= now) {
      Remove(&client, client.entries.begin());
    }
    owner = client.entries.empty() ? clients_.erase(owner) : std::next(owner);
  }
}

void ResponseStore::MakeRoom() {
  while (size_ > options_.max_responses || bytes_ > options_.max_bytes) {
    const bool too_many = size_ > options_.max_responses;
    const auto heaviest =
        std::max_element(clients_.begin(), clients_.end(), [too_many](const auto& a, const auto& b) {
          return too_many ? a.second.entries.size() < b.second.entries.size()
                          : a.second.bytes < b.second.bytes;
        });
    Remove(&heaviest->second, heaviest->second.entries.begin());
    if (heaviest->second.entries.empty()) clients_.erase(heaviest);
  }
}

size_t ResponseStore::size() const {
  absl::MutexLock lock(&mutex_);
  return size_;
}

size_t ResponseStore::bytes() const {
  absl::MutexLock lock(&mutex_);
  return bytes_;
}

}  // namespace aludel
