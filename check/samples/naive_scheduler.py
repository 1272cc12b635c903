#!/usr/bin/env python3
"""A scheduler in one page, to be judged: loratory check --scheduler "python3 naive_scheduler.py".

First come, first served. A request takes all the KV blocks that it will ever need when it is
admitted, so nothing is preempted. Adapters are in host memory; an idle one gives its slot to the
next. Full blocks are shared between requests of one adapter that begin alike. Lines of JSON on
stdin and stdout; docs/check_scheduler.md has the fields.
"""
import json
import sys

CLAIMS = {"prefix_cache": True, "chunked_prefill": True, "unloads": True, "generations": True,
          "deterministic": True, "max_overtakes": 0}
BASE = 0


class Adapter:
    def __init__(self, uid):
        self.uid = uid
        self.slot = -1
        self.ready = False  # the copy into the slot has ended
        self.retiring = False
        self.num_live = 0  # requests
        self.num_running = 0


class Request:
    def __init__(self, message, adapter):
        self.id = message["id"]
        self.adapter = adapter
        self.tokens = list(message["prompt"])
        self.num_prompt = len(self.tokens)
        self.max_new = message["max_new_tokens"]
        self.stops = message["stop_tokens"]
        self.shares = message["prefix_cache"]
        self.blocks = []
        self.computed = 0
        self.aborted = False

    @property
    def uid(self):
        return self.adapter.uid if self.adapter else BASE

    def num_blocks(self, size):  # the last token needs no KV
        return -(-(self.num_prompt + self.max_new - 1) // size)


class Scheduler:
    def hello(self, message):
        self.limits = message["limits"]
        self.by_name, self.next_uid = {}, 1
        self.slots = [None] * self.limits["max_loras"]
        self.generations = [0] * self.limits["max_loras"]
        self.requests, self.waiting, self.running = {}, [], []
        self.free = list(range(1, self.limits["num_blocks"]))  # the next one first
        self.users = [0] * self.limits["num_blocks"]
        self.key_of, self.block_of = {}, {}  # full blocks that may be shared
        self.step = None  # rows in flight: (request, number of tokens, samples)
        return {"protocol": 1, "name": "naive", "claims": CLAIMS}

    # --- adapters ---------------------------------------------------------------------------
    def register(self, message):
        name = message["name"]
        if name in self.by_name:
            if not message["replace"]:
                return {"status": "exists"}
            self.retire(name)
        adapter = self.by_name[name] = Adapter(self.next_uid)
        self.next_uid += 1
        return {"uid": adapter.uid}

    def unload(self, message):
        adapter = self.by_name.get(message["name"])
        if adapter is None:
            return {"status": "unknown"}
        self.retire(message["name"])
        if message["abort_requests"]:
            for request in [r for r in self.requests.values() if r.adapter is adapter]:
                self.cancel(request)
        return {}

    def retire(self, name):
        adapter = self.by_name.pop(name)
        adapter.retiring = True
        self.forget_if_idle(adapter)

    def forget_if_idle(self, adapter):
        is_moving = adapter.slot >= 0 and not adapter.ready
        if adapter.retiring and adapter.num_live == 0 and not is_moving:
            if adapter.slot >= 0:
                self.slots[adapter.slot] = None
            self.events.append({"event": "unloaded", "uid": adapter.uid})

    def bring(self, adapter):
        """Begins the copy of an adapter, if a slot can be had."""
        owners = self.slots
        idle = [i for i, a in enumerate(owners) if a and a.ready and a.num_running == 0]
        slot = owners.index(None) if None in owners else idle[0] if idle else -1
        if slot < 0:
            return
        if owners[slot]:
            owners[slot].slot, owners[slot].ready = -1, False
            self.events.append({"event": "evict", "uid": owners[slot].uid, "slot": slot})
        owners[slot] = adapter
        adapter.slot, adapter.ready = slot, False
        self.generations[slot] += 1
        self.events.append({"event": "copy", "uid": adapter.uid, "slot": slot,
                            "generation": self.generations[slot]})

    def copy_done(self, message):
        adapter = self.slots[message["slot"]]
        adapter.ready = True
        self.forget_if_idle(adapter)
        return {}

    # --- requests ---------------------------------------------------------------------------
    def submit(self, message):
        name = message["adapter"]
        if name is not None and name not in self.by_name:
            return {"status": "unknown"}
        request = Request(message, self.by_name.get(name))
        total = request.num_prompt + request.max_new
        if (request.num_prompt == 0 or request.id in self.requests
                or total > self.limits["max_model_len"]
                or request.num_blocks(self.limits["block_size"]) >= self.limits["num_blocks"]):
            return {"status": "refused"}
        self.requests[request.id] = request
        self.waiting.append(request)
        if request.adapter:
            request.adapter.num_live += 1
        return {}

    def abort(self, message):
        request = self.requests.get(message["id"])
        if request is None:
            return {"status": "unknown"}
        self.cancel(request)
        return {}

    def cancel(self, request):
        request.aborted = True
        if not self.step or all(row[0] is not request for row in self.step):
            self.finish(request, "abort")

    def finish(self, request, reason):
        self.events.append({"event": "finish", "id": request.id, "reason": reason,
                            "num_generated": len(request.tokens) - request.num_prompt})
        del self.requests[request.id]
        is_running = request in self.running
        (self.running if is_running else self.waiting).remove(request)
        for block in reversed(request.blocks):
            self.users[block] -= 1
            if self.users[block] == 0:  # one that can be shared is handed out last
                self.free.insert(len(self.free) if block in self.key_of else 0, block)
        if request.adapter:
            request.adapter.num_live -= 1
            request.adapter.num_running -= is_running
            self.forget_if_idle(request.adapter)

    # --- steps ------------------------------------------------------------------------------
    def key(self, request, index):
        """What a full block holds: KV of these tokens, with this adapter."""
        return (request.uid, tuple(request.tokens[:(index + 1) * self.limits["block_size"]]))

    def admit(self, request):
        """Takes the request's blocks; false if there are too few."""
        size, found = self.limits["block_size"], []
        while request.shares and (len(found) + 1) * size < len(request.tokens):
            block = self.block_of.get(self.key(request, len(found)))
            if block is None:
                break
            found.append(block)
        num_new = request.num_blocks(size) - len(found)
        if num_new > len(self.free) - sum(self.users[block] == 0 for block in found):
            return False
        for block in found:
            if self.users[block] == 0:
                self.free.remove(block)
        new = [self.free.pop(0) for _ in range(num_new)]
        for block in new:
            self.block_of.pop(self.key_of.pop(block, None), None)
        request.blocks, request.computed = found + new, len(found) * size
        for block in request.blocks:
            self.users[block] += 1
        return True

    def plan(self, message):
        while self.waiting and len(self.running) < self.limits["max_num_seqs"]:
            request, adapter = self.waiting[0], self.waiting[0].adapter
            if adapter and adapter.slot < 0:
                self.bring(adapter)
            if (adapter and not adapter.ready) or not self.admit(request):
                break
            self.running.append(self.waiting.pop(0))
            if adapter:
                adapter.num_running += 1
        self.step, rows, budget = [], [], self.limits["max_num_batched_tokens"]
        for request in self.running:
            num_tokens = min(len(request.tokens) - request.computed, budget)
            if num_tokens == 0:
                break
            budget -= num_tokens
            samples = request.computed + num_tokens == len(request.tokens)
            slot = request.adapter.slot if request.adapter else -1
            self.step.append((request, num_tokens, samples))
            rows.append({"id": request.id, "uid": request.uid, "slot": slot,
                         "generation": self.generations[slot] if slot >= 0 else 0,
                         "start": request.computed, "num_tokens": num_tokens, "samples": samples,
                         "blocks": request.blocks})
        return {"rows": rows}

    def commit(self, message):
        sampled, (rows, self.step) = iter(message["sampled"]), (self.step, None)
        for request, num_tokens, samples in rows:
            request.computed += num_tokens
            token = next(sampled)["token"] if samples else None
            for i in range(request.computed // self.limits["block_size"] if request.shares else 0):
                key, block = self.key(request, i), request.blocks[i]
                if key not in self.block_of and block not in self.key_of:
                    self.block_of[key], self.key_of[block] = block, key
            if request.aborted:
                self.finish(request, "abort")
            elif samples:
                request.tokens.append(token)
                if token in request.stops:
                    self.finish(request, "stop")
                elif len(request.tokens) == request.num_prompt + request.max_new:
                    self.finish(request, "length")
        return {}

    def answer(self, message):
        self.events = []
        reply = getattr(self, message["op"])(message)
        return reply if message["op"] == "hello" else {**reply, "events": self.events}


if __name__ == "__main__":
    scheduler = Scheduler()
    for line in sys.stdin:
        print(json.dumps(scheduler.answer(json.loads(line))), flush=True)
