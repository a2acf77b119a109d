"""Accounting of a paged KV cache: which block belongs to which sequence, and what is reused.

Only the books are kept here. K and V of a sequence live in a transformers cache of its own and are
always computed, so a reused block changes counts and occupancy, never a result.

Reuse follows TensorRT-LLM's block manager: a full block is found again by a hash of its tokens and
of all before them; the last token of a prompt is always computed, so a prompt of exactly two blocks
reuses at most one. Blocks that match in part are not copied (`enable_partial_reuse` upstream).
"""

import collections
import hashlib


class Table:
    """The blocks of one sequence, in order, and what opening it cost.

    Attributes:
        total: blocks taken from the free list for the prompt, `new` of which held nothing to reuse.
        reused, missed: prompt blocks found in the cache, and not found; their sum is the prompt's.
    """

    def __init__(self, root):
        self.blocks, self.root = [], root
        self.total = self.new = self.reused = self.missed = 0


class BlockPool:
    """A fixed number of blocks.

    Args:
        blocks: how many.
        tokens_per_block: tokens a block holds.
        reuse: keep the content of freed blocks findable until the block is needed.
    """

    def __init__(self, blocks, tokens_per_block, reuse=False):
        self.size, self.tokens_per_block, self.reuse = blocks, tokens_per_block, reuse
        self.reused = 0  # since the start
        self._plain = collections.deque(range(blocks))
        self._cached = collections.OrderedDict()  # free blocks with content, least recent first
        self._holders = [0] * blocks
        self._key, self._block = {}, {}  # block -> content key, and back
        self._tables = set()

    @property
    def free(self):
        return len(self._plain) + len(self._cached)

    @property
    def used(self):
        return self.size - self.free

    def blocks_for(self, tokens):
        return -(-tokens // self.tokens_per_block)

    @staticmethod
    def root(lora_id=None, media=()):
        """First link of a hash chain: blocks of another adapter or other images never match."""
        digest = hashlib.blake2b(repr(lora_id).encode(), digest_size=16)
        for item in media:
            digest.update(hashlib.blake2b(bytes(item), digest_size=16).digest())
        return digest.digest()

    def _keys(self, root, ids, count):
        """Keys of the first `count` full blocks of `ids`."""
        link, size = root, self.tokens_per_block
        for i in range(count):
            digest = hashlib.blake2b(link, digest_size=16)
            for token in ids[i * size : (i + 1) * size]:
                digest.update(token.to_bytes(4, "little"))
            link = digest.digest()
            yield link

    def match(self, root, ids):
        """Blocks that a prompt `ids` finds in the cache, in order."""
        found = []
        if self.reuse:
            for key in self._keys(root, ids, (len(ids) - 1) // self.tokens_per_block):
                if key not in self._block:
                    break
                found.append(self._block[key])
        return found

    def held(self, blocks):
        """How many of `blocks` some sequence holds."""
        return sum(1 for block in blocks if self._holders[block])

    def open(self, root, ids):
        """A table that covers `ids`, or None where the free blocks do not suffice."""
        found = self.match(root, ids)
        wanted = self.blocks_for(len(ids))
        taken = wanted - self.held(found)
        if taken > self.free:
            return None
        table = Table(root)
        for block in found:
            self._cached.pop(block, None)
            self._holders[block] += 1
        table.blocks.extend(found)
        table.reused, table.missed = len(found), wanted - len(found)
        self.reused += len(found)
        for _ in range(wanted - len(found)):
            block, fresh = self._take()
            table.blocks.append(block)
            table.total += 1
            table.new += fresh
        self._tables.add(table)
        return table

    def extend(self, table, tokens):
        """Cover `tokens` tokens; False, and nothing changed, where the free blocks do not suffice."""
        more = self.blocks_for(tokens) - len(table.blocks)
        if more > self.free:
            return False
        for _ in range(more):
            table.blocks.append(self._take()[0])
        return True

    def store(self, table, ids):
        """Make the full blocks among `ids`, which are computed, findable."""
        if not self.reuse:
            return
        full = min(len(ids) // self.tokens_per_block, len(table.blocks))
        for key, block in zip(self._keys(table.root, ids, full), table.blocks):
            if key not in self._block and block not in self._key:
                self._block[key], self._key[block] = block, key

    def close(self, table):
        """Give a table's blocks back; may be called again."""
        self._tables.discard(table)
        # From the end, so that a prefix outlives what continues it.
        for block in reversed(table.blocks):
            self._holders[block] -= 1
            if self._holders[block] == 0:
                if block in self._key:
                    self._cached[block] = None
                else:
                    self._plain.append(block)
        table.blocks = []

    def _take(self):
        """(a free block, whether it held nothing)."""
        if self._plain:
            block, fresh = self._plain.popleft(), True
        else:
            block, fresh = self._cached.popitem(last=False)[0], False
            del self._block[self._key.pop(block)]
        self._holders[block] = 1
        return block, fresh

    def check(self):
        """Assert that each block is free once or held as often as tables say."""
        held = collections.Counter(block for table in self._tables for block in table.blocks)
        assert [held[block] for block in range(self.size)] == self._holders
        free = list(self._plain) + list(self._cached)
        assert len(free) == len(set(free))
        assert set(free) == {block for block in range(self.size) if not self._holders[block]}
        assert {key: block for block, key in self._key.items()} == self._block
        assert set(self._cached) <= set(self._key)
        assert not set(self._plain) & set(self._key)
        for table in self._tables:
            assert len(set(table.blocks)) == len(table.blocks)
