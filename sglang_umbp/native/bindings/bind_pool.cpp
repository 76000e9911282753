#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>

#include <chrono>
#include <deque>

#include "arguments.h"
#include "errors.h"
#include "pool.h"
#include "released_gil.h"

namespace umbp {
namespace {

using Answers = std::vector<Status>;

void make_components(Components* self, Pool& pool, nb::sequence identities) {
  std::vector<std::string> names;
  for (nb::handle item : identities) {
    const auto identity = nb::cast<nb::bytes>(item);
    names.emplace_back(identity.c_str(), identity.size());
  }
  new (self) Components(pool, std::move(names));
}

nb::list get_pages(Pool& pool, const ComponentLayout& layout, nb::handle hashes,
                   nb::handle row_array, nb::handle layer_pair, bool as_status, nb::handle stream,
                   nb::handle event) {
  const Order after(stream, event);
  const Layers layers(layer_pair, layout.layout);
  const Digests digests(pool, hashes);
  const Rows rows(row_array);
  Answers answers(digests.size());
  {
    const ReleasedGil no_gil;
    pool.get_pages(layout.component(), layout.layout, digests.span(), rows.span(), layers.first,
                   layers.last, answers.data(), after);
  }
  return to_answers(answers, as_status);
}

// What one part of get_components is: arguments read once.
struct PageRead {
  explicit PageRead(nb::handle given)
      : part(given, "(layout, hashes, rows) or (layout, hashes, rows, layers)", 3, 4),
        layers(part[3], part.layout().layout), rows(part[2]) {}

  Part part;
  Layers layers;
  Rows rows;
  const Digests* keys = nullptr;
};

// Parts that name one list of keys share what is read of it.
std::vector<Digests> read_keys(const Pool& pool, std::span<PageRead> reads) {
  std::vector<Digests> digests;
  digests.reserve(reads.size());  // never moves what others refer to
  const PageRead* before = nullptr;
  for (PageRead& read : reads) {
    const bool same = before != nullptr && before->part[1].is(read.part[1]);
    read.keys = same ? before->keys : &digests.emplace_back(pool, read.part[1]);
    before = &read;
  }
  return digests;
}

nb::list get_components(Pool& pool, nb::sequence parts, bool as_status, nb::handle stream,
                        nb::handle event) {
  const Order after(stream, event);
  std::vector<PageRead> reads;
  reads.reserve(nb::len(parts));
  for (nb::handle part : parts) reads.emplace_back(part);
  const std::vector<Digests> digests = read_keys(pool, reads);
  std::vector<PageGet> gets;
  std::vector<size_t> counts;
  gets.reserve(reads.size());
  counts.reserve(reads.size());
  size_t count = 0;
  for (const PageRead& read : reads) {
    const ComponentLayout& layout = read.part.layout();
    gets.push_back({layout.component(), layout.layout, read.keys->span(), read.rows.span(),
                    read.layers.first, read.layers.last});
    counts.push_back(read.keys->size());
    count += counts.back();
  }
  Answers answers(count);
  {
    const ReleasedGil no_gil;
    pool.get_components(gets, answers.data(), after);
  }
  return to_answers(answers, counts, as_status);
}

nb::list put_pages(Pool& pool, const ComponentLayout& layout, nb::handle hashes,
                   nb::handle row_array, std::optional<uint32_t> depth, bool as_status,
                   nb::handle stream, nb::handle event) {
  const Order after(stream, event);
  const HeldKeys keys(pool, hashes);
  const Rows rows(row_array);
  Answers answers(keys.size());
  {
    const ReleasedGil no_gil;
    pool.put_pages(layout.component(), layout.layout, keys.digests(), keys.views(), rows.span(),
                   depth, answers.data(), after);
  }
  return to_answers(answers, as_status);
}

// What one group of put_components is: arguments read once.
struct PageGroup {
  PageGroup(const Pool& pool, nb::handle given)
      : part(given, "(layout, hashes, rows)", 3, 3), keys(pool, part[1]), rows(part[2]) {}

  Part part;
  HeldKeys keys;
  Rows rows;
};

nb::list put_components(Pool& pool, nb::sequence groups, std::optional<uint32_t> depth,
                        bool as_status, nb::handle stream, nb::handle event) {
  const Order after(stream, event);
  std::deque<PageGroup> held;
  for (nb::handle group : groups) held.emplace_back(pool, group);
  std::vector<PagePut> puts;
  std::vector<size_t> counts;
  size_t count = 0;
  for (const PageGroup& group : held) {
    const ComponentLayout& layout = group.part.layout();
    puts.push_back({layout.component(), layout.layout, group.keys.digests(), group.keys.views(),
                    group.rows.span()});
    counts.push_back(group.keys.size());
    count += counts.back();
  }
  Answers answers(count);
  {
    const ReleasedGil no_gil;
    pool.put_components(puts, depth, answers.data(), after);
  }
  return to_answers(answers, counts, as_status);
}

nb::list get_listed(Pool& pool, const Components& components, size_t part, nb::handle keys,
                    const Ranges& ranges, bool as_status, const Order& after) {
  const Digests digests(pool, keys);
  Answers answers(digests.size());
  {
    const ReleasedGil no_gil;
    pool.get_ranges(components.part(part), digests.span(), ranges.batch(), answers.data(), after);
  }
  return to_answers(answers, as_status);
}

nb::list get_whole(Pool& pool, const Components& components, size_t part, nb::handle keys,
                   nb::handle addresses, nb::handle sizes, bool as_status, nb::handle stream,
                   nb::handle event) {
  return get_listed(pool, components, part, keys, Ranges(addresses, sizes), as_status,
                    {stream, event});
}

nb::list get_ranges(Pool& pool, const Components& components, size_t part, nb::handle keys,
                    nb::handle addresses, nb::handle sizes, nb::handle offsets, nb::handle starts,
                    bool as_status, nb::handle stream, nb::handle event) {
  return get_listed(pool, components, part, keys, Ranges(addresses, sizes, offsets, starts),
                    as_status, {stream, event});
}

nb::list put_listed(Pool& pool, const Components& components, size_t part, nb::handle keys,
                    const Integers* object_sizes, const Ranges& ranges, bool as_status,
                    const Order& after) {
  const HeldKeys held(pool, keys);
  if (object_sizes != nullptr) object_sizes->check_size(held.size());
  Answers answers(held.size());
  {
    const ReleasedGil no_gil;
    pool.put_ranges(components.part(part), held.digests(), held.views(),
                    object_sizes == nullptr ? nullptr : object_sizes->data(), ranges.batch(),
                    answers.data(), after);
  }
  return to_answers(answers, as_status);
}

nb::list put_whole(Pool& pool, const Components& components, size_t part, nb::handle keys,
                   nb::handle addresses, nb::handle sizes, bool as_status, nb::handle stream,
                   nb::handle event) {
  return put_listed(pool, components, part, keys, nullptr, Ranges(addresses, sizes), as_status,
                    {stream, event});
}

nb::list put_ranges(Pool& pool, const Components& components, size_t part, nb::handle keys,
                    nb::handle object_sizes, nb::handle addresses, nb::handle sizes,
                    nb::handle offsets, nb::handle starts, bool as_status, nb::handle stream,
                    nb::handle event) {
  const Integers objects(object_sizes, "object_sizes");
  return put_listed(pool, components, part, keys, &objects,
                    Ranges(addresses, sizes, offsets, starts), as_status, {stream, event});
}

nb::list to_bools(const std::unique_ptr<bool[]>& values, size_t size) {
  nb::list answers;
  for (size_t i = 0; i < size; ++i) answers.append(values[i]);
  return answers;
}

nb::list exists(Pool& pool, const Components& components, nb::handle keys) {
  const Digests digests(pool, keys);
  const auto found = std::make_unique<bool[]>(digests.size());
  {
    const ReleasedGil no_gil;
    pool.exists(components.list(), digests.span(), found.get());
  }
  return to_bools(found, digests.size());
}

uint64_t time_exists(Pool& pool, const Components& components, nb::handle keys) {
  const Digests digests(pool, keys);
  const auto found = std::make_unique<bool[]>(digests.size());
  const ReleasedGil no_gil;
  const auto begin = std::chrono::steady_clock::now();
  pool.exists(components.list(), digests.span(), found.get());
  const auto elapsed = std::chrono::steady_clock::now() - begin;
  return static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(elapsed).count());
}

size_t exists_prefix(Pool& pool, const Components& components, nb::handle keys) {
  const Digests digests(pool, keys);
  const ReleasedGil no_gil;
  return pool.exists_prefix(components.list(), digests.span());
}

nb::list remove_keys(Pool& pool, const Components& components, nb::handle keys) {
  const Digests digests(pool, keys);
  const auto removed = std::make_unique<bool[]>(digests.size());
  {
    const ReleasedGil no_gil;
    pool.remove(components.list(), digests.span(), removed.get());
  }
  return to_bools(removed, digests.size());
}

nb::list locate(Pool& pool, const Components& components, size_t part, nb::handle keys) {
  const Digests digests(pool, keys);
  nb::list places;
  for (const Hash128& digest : digests.span())
    places.append(nb::cast(pool.locate(components.part(part), digest)));
  return places;
}

nb::dict to_dict(const PhaseTotals::Snapshot& phases) {
  static const char* const names[kPhaseCount] = {"resolve", "classify", "build",  "allocate", "plan",
                                                 "submit",  "wait",     "commit", "other"};
  nb::dict dict;
  dict["calls"] = phases.calls;
  dict["items"] = phases.items;
  dict["bytes"] = phases.bytes;
  nb::dict ns;
  for (size_t i = 0; i < kPhaseCount; ++i) ns[names[i]] = phases.ns[i];
  dict["ns"] = ns;
  return dict;
}

template <class Counts>
nb::list to_list(const Counts& counts) {
  nb::list list;
  for (const uint64_t count : counts) list.append(count);
  return list;
}

nb::dict to_dict(const Log2Histogram::Snapshot& histogram) {
  nb::dict dict;
  dict["counts"] = to_list(histogram.counts);
  dict["total_ns"] = histogram.total_ns;
  return dict;
}

nb::dict to_dict(const OwnerStats& owner) {
  nb::dict dict;
  dict["objects"] = owner.objects;
  dict["live_bytes"] = owner.space.live_bytes;
  dict["used_bytes"] = owner.space.used_bytes;
  dict["retired_bytes"] = owner.space.retired_bytes;
  dict["capacity_bytes"] = owner.capacity_bytes;
  dict["arena_bytes"] = owner.arena_bytes;
  dict["evicted"] = owner.space.evicted_objects;
  dict["evicted_bytes"] = owner.space.evicted_bytes;
  dict["passes"] = owner.space.passes;
  dict["owner_locks"] = owner.locks;
  dict["clients"] = owner.clients;
  dict["bytes_written"] = owner.stored_bytes;
  dict["index_entries"] = owner.entry_count;
  dict["evicted_for_entries"] = owner.evicted_for_entries;
  dict["puts_by_status"] = to_list(owner.puts_by_status);
  dict["put_waits"] = to_dict(owner.put_waits);
  return dict;
}

nb::dict to_dict(const DeviceCopyTotals& copies) {
  static const char* const ways[] = {"auto", "dma", "kernel", "bulk", "dma_each"};
  nb::dict dict;
  dict["fragments"] = copies.fragments;
  dict["descriptors"] = copies.descriptors;
  dict["calls"] = copies.calls;
  dict["bytes"] = copies.bytes;
  dict["submit_ns"] = copies.submit_ns;
  nb::dict by_way;
  for (size_t i = 1; i < std::size(ways); ++i) by_way[ways[i]] = copies.by_way[i];
  dict["by_way"] = by_way;
  return dict;
}

nb::dict stats(Pool& pool) {
  PoolStats stats;
  {
    const ReleasedGil no_gil;
    stats = pool.stats();
  }
  nb::dict dict;
  if (stats.owner_attached) dict["owner"] = to_dict(stats.owner);
  dict["sessions"] = stats.sessions.open;
  dict["pinned_bytes"] = stats.sessions.pinned_bytes;
  dict["sessions_dropped"] = stats.sessions.dropped;
  dict["pins_cut_short"] = stats.sessions.cut_short;
  dict["get_calls"] = stats.reads.calls;
  dict["gets_by_status"] = to_list(stats.reads.by_status);
  dict["exists_keys"] = stats.reads.keys_looked_up;
  dict["exists_found"] = stats.reads.keys_found;
  dict["bytes_read"] = stats.reads.bytes;
  dict["regions"] = stats.regions;
  dict["region_locks"] = stats.region_locks;
  dict["copy_isa"] = stats.copy_isa;
  nb::dict devices = to_dict(stats.devices.copies);
  devices["staged_bytes"] = stats.devices.staged_bytes;
  devices["pinned_bytes"] = stats.devices.pinned_bytes;
  dict["devices"] = devices;
  dict["gets"] = to_dict(stats.gets);
  dict["puts"] = to_dict(stats.puts);
  nb::dict latency;
  latency["get"] = to_dict(stats.get_latency);
  latency["put"] = to_dict(stats.put_latency);
  latency["exists"] = to_dict(stats.exists_latency);
  latency["pin"] = to_dict(stats.pin_latency);
  dict["latency"] = latency;
  return dict;
}

std::vector<ClientReport> clients_of(Pool& pool) {
  const ReleasedGil no_gil;
  return pool.clients();
}

nb::list named_bytes(Pool& pool) {
  nb::list list;
  for (const ClientReport& client : clients_of(pool))
    if (client.named_bytes != 0)
      list.append(nb::make_tuple(static_cast<int>(client.pid), client.named_bytes));
  return list;
}

nb::list clients(Pool& pool) {
  static const char* const names[kFigures] = {"get_calls",  "gets",        "hits",
                                              "bytes_read", "exists_keys", "exists_found"};
  nb::list list;
  for (const ClientReport& client : clients_of(pool)) {
    nb::dict dict;
    dict["client_id"] = client.id;
    dict["pid"] = static_cast<int>(client.pid);
    dict["named_bytes"] = client.named_bytes;
    dict["session_bytes"] = client.session_bytes;
    for (size_t i = 0; i < kFigures; ++i) dict[names[i]] = client.figures[i];
    list.append(dict);
  }
  return list;
}

nb::list component_totals(Pool& pool) {
  std::vector<Pool::ComponentReport> reports;
  {
    const ReleasedGil no_gil;
    reports = pool.component_reports();
  }
  nb::list list;
  for (const Pool::ComponentReport& report : reports)
    list.append(nb::make_tuple(nb::bytes(report.identity.data(), report.identity.size()),
                               report.live.objects, report.live.nbytes));
  return list;
}

nb::dict share(Pool& pool) {
  const Share share = [&] {
    const ReleasedGil no_gil;
    return pool.share();
  }();
  nb::list memory;
  for (const int fd : share.memory) memory.append(fd);
  nb::dict dict;
  dict["memory"] = memory;
  dict["client"] = share.client;
  dict["client_id"] = share.client_id;
  return dict;
}

std::unique_ptr<Pool> attach(const PoolConfig& config, nb::sequence memory, int client) {
  Share share;
  if (nb::len(memory) != share.memory.size())
    throw InvalidBatch("four descriptors are needed: header, buckets, entries, arena");
  for (size_t i = 0; i < share.memory.size(); ++i) share.memory[i] = nb::cast<int>(memory[i]);
  share.client = client;
  return std::make_unique<Pool>(config, share);
}

}  // namespace

void bind_config(nb::module_& m) {
  nb::class_<PoolConfig>(m, "PoolConfig", "Settings of a native pool; see PoolSettings for the meaning.")
      .def(nb::init<>())
      .def_prop_rw("capacity_bytes", [](PoolConfig& c) { return c.owner.capacity_bytes; },
                   [](PoolConfig& c, uint64_t v) { c.owner.capacity_bytes = v; })
      .def_prop_rw("index_entries", [](PoolConfig& c) { return c.owner.entry_count; },
                   [](PoolConfig& c, uint32_t v) { c.owner.entry_count = v; })
      .def_prop_rw("memfd",
                   [](PoolConfig& c) { return c.owner.memory.backing == MemoryBacking::kMemfd; },
                   [](PoolConfig& c, bool v) {
                     c.owner.memory.backing = v ? MemoryBacking::kMemfd : MemoryBacking::kAnonymous;
                   })
      .def_prop_rw("hugepages", [](PoolConfig& c) { return c.owner.memory.hugepages; },
                   [](PoolConfig& c, bool v) { c.owner.memory.hugepages = v; })
      .def_prop_rw("prefault", [](PoolConfig& c) { return c.owner.memory.prefault; },
                   [](PoolConfig& c, bool v) { c.owner.memory.prefault = v; })
      .def_prop_rw("prefault_in_background",
                   [](PoolConfig& c) { return c.owner.memory.prefault_in_background; },
                   [](PoolConfig& c, bool v) { c.owner.memory.prefault_in_background = v; })
      .def_prop_rw("numa_node", [](PoolConfig& c) { return c.owner.memory.numa_node; },
                   [](PoolConfig& c, int v) { c.owner.memory.numa_node = v; })
      .def_prop_rw("policy", [](PoolConfig& c) { return c.owner.policy; },
                   [](PoolConfig& c, const std::string& v) { c.owner.policy = v; })
      .def_prop_rw("high_watermark", [](PoolConfig& c) { return c.owner.high_watermark; },
                   [](PoolConfig& c, double v) { c.owner.high_watermark = v; })
      .def_prop_rw("low_watermark", [](PoolConfig& c) { return c.owner.low_watermark; },
                   [](PoolConfig& c, double v) { c.owner.low_watermark = v; })
      .def_rw("nt_copy_min_bytes", &PoolConfig::nt_copy_min_bytes)
      .def_rw("copy_threads", &PoolConfig::copy_threads)
      .def_rw("copy_isa", &PoolConfig::copy_isa)
      .def_rw("session_quota_bytes", &PoolConfig::session_quota_bytes)
      .def_prop_rw("deadline_s",
                   [](PoolConfig& c) { return std::chrono::duration<double>(c.deadline).count(); },
                   [](PoolConfig& c, double v) {
                     c.deadline = std::chrono::duration_cast<std::chrono::nanoseconds>(
                         std::chrono::duration<double>(v));
                   })
      .def_rw("strict_registration", &PoolConfig::strict_registration)
      .def_rw("exists_refreshes", &PoolConfig::exists_refreshes)
      .def_rw("call_debug", &PoolConfig::call_debug)
      .def_rw("latency_histograms", &PoolConfig::latency_histograms)
      .def_rw("staging_bytes", &PoolConfig::staging_bytes)
      .def_rw("pin_chunk_bytes", &PoolConfig::pin_chunk_bytes);
}

void bind_pool(nb::module_& m) {
  nb::class_<Components>(m, "Components", "The components of a namespace, in order.")
      .def("__init__", &make_components, nb::arg("pool"), nb::arg("identities"))
      .def("__len__", &Components::size)
      .def("rebind", &Components::rebind, nb::arg("pool"),
           "The same namespace in another pool; its layouts follow. The pool before must be closed or "
           "unmapped, and the\n"
           "new one not be used with this namespace yet. Raises InvalidBatchError.");
  nb::class_<Pool>(m, "Pool", nb::dynamic_attr(), nb::is_weak_referenceable(),
                   "The native pool; sglang_umbp.Pool documents it.")
      .def(nb::init<const PoolConfig&>(), nb::arg("config"), nb::call_guard<ReleasedGil>())
      .def_static("attach", &attach, nb::arg("config"), nb::arg("memory"),
                  nb::arg("client"), "A reader of another process's pool, from the descriptors of share().")
      .def("close", &Pool::close, nb::call_guard<ReleasedGil>())
      .def_prop_ro("closed", &Pool::closed)
      .def("lose", &Pool::lose,
           "The owner of an attached pool is gone: from now on nothing is found, and no call raises for "
           "that. Calls that\n"
           "run finish. Raises UmbpError in the owner itself.")
      .def("unmap", &Pool::unmap, nb::call_guard<ReleasedGil>(),
           "Of a lost pool: waits for calls that ran at the loss, ends the sessions, gives the memory "
           "back. Calls go on\n"
           "finding nothing until ``close``.")
      .def_prop_ro("lost", &Pool::lost)
      .def("hide", &Pool::hide, nb::arg("hidden"),
           "While hidden nothing is found that no session holds: look-ups, gets and pins are misses.")
      .def_prop_ro("hidden", &Pool::hidden)
      .def_prop_ro("populated", &Pool::populated,
                   "Whether every map has its pages: what ``prefault_in_background`` started is "
                   "through.")
      .def("register_memory", &Pool::add_region, nb::arg("address"), nb::arg("nbytes"),
           nb::arg("grow") = false, nb::call_guard<ReleasedGil>())
      .def("unregister_memory", &Pool::remove_region, nb::arg("address"),
           nb::call_guard<ReleasedGil>())
      .def("get_pages", &get_pages, nb::arg("layout"), nb::arg("hashes"), nb::arg("rows"),
           nb::arg("layers") = nb::none(), nb::kw_only(), nb::arg("status") = false,
           nb::arg("stream") = nb::none(), nb::arg("event") = nb::none())
      .def("get_components", &get_components, nb::arg("parts"), nb::kw_only(),
           nb::arg("status") = false, nb::arg("stream") = nb::none(), nb::arg("event") = nb::none())
      .def("put_pages", &put_pages, nb::arg("layout"), nb::arg("hashes"), nb::arg("rows"),
           nb::arg("depth").none(), nb::arg("status"), nb::arg("stream") = nb::none(),
           nb::arg("event") = nb::none())
      .def("put_components", &put_components, nb::arg("parts"), nb::arg("depth").none(),
           nb::arg("status"), nb::arg("stream") = nb::none(), nb::arg("event") = nb::none())
      .def("get_whole", &get_whole, nb::arg("components"), nb::arg("part"), nb::arg("keys"),
           nb::arg("addresses"), nb::arg("sizes"), nb::arg("status"),
           nb::arg("stream") = nb::none(), nb::arg("event") = nb::none())
      .def("get_ranges", &get_ranges, nb::arg("components"), nb::arg("part"), nb::arg("keys"),
           nb::arg("addresses"), nb::arg("sizes"), nb::arg("offsets"), nb::arg("starts").none(),
           nb::arg("status"), nb::arg("stream") = nb::none(), nb::arg("event") = nb::none())
      .def("put_whole", &put_whole, nb::arg("components"), nb::arg("part"), nb::arg("keys"),
           nb::arg("addresses"), nb::arg("sizes"), nb::arg("status"),
           nb::arg("stream") = nb::none(), nb::arg("event") = nb::none())
      .def("put_ranges", &put_ranges, nb::arg("components"), nb::arg("part"), nb::arg("keys"),
           nb::arg("object_sizes"), nb::arg("addresses"), nb::arg("sizes"), nb::arg("offsets"),
           nb::arg("starts").none(), nb::arg("status"), nb::arg("stream") = nb::none(), nb::arg("event") = nb::none())
      .def("exists", &exists, nb::arg("components"), nb::arg("keys"))
      .def("exists_prefix", &exists_prefix, nb::arg("components"), nb::arg("keys"))
      .def("time_exists", &time_exists, nb::arg("components"), nb::arg("keys"),
           "A door for benchmarks: nanoseconds of one look-up of all keys, their page hashes already "
           "digested.")
      .def("remove", &remove_keys, nb::arg("components"), nb::arg("keys"))
      .def("clear", &Pool::clear, nb::call_guard<ReleasedGil>())
      .def("flush", &Pool::flush, nb::call_guard<ReleasedGil>())
      .def("stats", &stats)
      .def_prop_ro("troubles", &Pool::troubles,
                   "Changes when a put fails, and once when the index is full before the bytes are.")
      .def("named_bytes", &named_bytes,
           "(pid, bytes) of each client whose slots or sessions name something.")
      .def("locate", &locate, nb::arg("components"), nb::arg("part"), nb::arg("keys"),
           "A door for benchmarks: (address, nbytes) of each object in the arena, (0, 0) if missing.")
      .def("share", &share, "A door for tests: descriptors of the memory and of a new client area.")
      .def("clients", &clients, nb::sig("def clients(self) -> list[dict[str, int]]"),
           "Per client: client_id, pid, named_bytes (what its slots and sessions keep from being "
           "reused), session_bytes (the\n"
           "part that sessions name), and get_calls, gets, hits (keys), bytes_read, exists_keys, "
           "exists_found as it last\n"
           "reported them. The first is the pool itself.")
      .def("component_totals", &component_totals,
           nb::sig("def component_totals(self) -> list[tuple[bytes, int, int]]"),
           "(identity, live objects, their bytes) of each component; of the owner only.")
      .def("report_reads", &Pool::report_reads, nb::call_guard<ReleasedGil>(),
           "Leaves what this process has read so far where the owner's ``clients`` finds it.")
      .def("bind_client", &Pool::bind_client, nb::arg("client_id"), nb::arg("pid"),
           nb::arg("pidfd") = -1, nb::call_guard<ReleasedGil>(),
           "What the client named is free once this process has ended. pidfd: a descriptor of that "
           "process, duplicated; -1:\n"
           "it is found by its number.")
      .def("remove_client", &Pool::remove_client, nb::arg("client_id"),
           nb::call_guard<ReleasedGil>(), "What the client named may be reused from now on.");
}

}  // namespace umbp
