"""A second reader of checkpoints: h5py and NumPy, nothing of Etalon. Usage: ckpt_h5py.py FILE. Checks the values that ckpt_model.h defines, the types,
the links and the hashes, whose definition (XXH64 of the name, splitmix64 mixing, sum modulo 2^64) is written down here once more."""
import sys

import h5py
import numpy as np

M = (1 << 64) - 1
P = (11400714785074694791, 14029467366897019727, 1609587929392839161, 9650029242287828579, 2870177450012600261)


def rotl(x, r):
    return ((x << r) | (x >> (64 - r))) & M


def xxh64(data):
    def lane(acc, word):
        return rotl((acc + word * P[1]) & M, 31) * P[0] & M

    at, n = 0, len(data)
    if n >= 32:
        v = [(P[0] + P[1]) & M, P[1], 0, -P[0] & M]
        while at + 32 <= n:
            v = [lane(v[i], int.from_bytes(data[at + 8 * i:at + 8 * i + 8], "little")) for i in range(4)]
            at += 32
        h = (rotl(v[0], 1) + rotl(v[1], 7) + rotl(v[2], 12) + rotl(v[3], 18)) & M
        for x in v:
            h = ((h ^ lane(0, x)) * P[0] + P[3]) & M
    else:
        h = P[4]
    h = (h + n) & M
    while at + 8 <= n:
        h = (rotl(h ^ lane(0, int.from_bytes(data[at:at + 8], "little")), 27) * P[0] + P[3]) & M
        at += 8
    if at + 4 <= n:
        h = (rotl(h ^ (int.from_bytes(data[at:at + 4], "little") * P[0] & M), 23) * P[1] + P[2]) & M
        at += 4
    for byte in data[at:]:
        h = rotl(h ^ (byte * P[4] & M), 11) * P[0] & M
    h = (h ^ (h >> 33)) * P[1] & M
    h = (h ^ (h >> 29)) * P[2] & M
    return h ^ (h >> 32)


assert xxh64(b"") == 0xEF46DB3751D8E999 and xxh64(b"abc") == 0x44BC2CF5AD770999  # published vectors


def mix(x):
    x = x ^ (x >> np.uint64(30))
    x = x * np.uint64(0xBF58476D1CE4E5B9)
    x = x ^ (x >> np.uint64(27))
    x = x * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


MODEL = [("model.embed_tokens.weight", "f32", (37, 12)), ("model.layers.0.self_attn.q_proj.weight", "f32", (24, 13)),
         ("model.layers.0.block_sparse_moe.experts.3.w2.weight", "f64", (5, 31)), ("model.norm.weight", "f32", (12,)), ("half", "bf16", (9, 7)),
         ("counts", "i64", (1,)), ("bytes", "u8", (1, 5)), ("tall", "u32", (700, 3))]
STORED = {"f32": "<f4", "f64": "<f8", "bf16": "<u2", "i64": "<i8", "u8": "|u1", "u32": "<u4"}

f = h5py.File(sys.argv[1], "r")
np.seterr(over="ignore")
assert f.attrs["etalon"] == b"checkpoint", f.attrs["etalon"]
meta = f["meta"].attrs
assert meta["format_version"] == 1 and meta["n_tensors"] == 24 and meta["step"] == 1 and meta["seed"] == 2**64 - 6
assert meta["config"].decode() == "model:\n  hidden_size: 12\n"
assert sorted(f) == ["masters", "meta", "moments", "weights"] and sorted(f["moments"]) == ["m"]
for group, salt in (("weights", 0), ("masters", 0), ("moments/m", 1)):
    assert len(f[group]) == len(MODEL)
    for number, (name, dtype, shape) in enumerate(MODEL):
        d = f[group][name]
        assert d.shape == shape and d.attrs["dtype"].decode() == dtype and d.dtype == np.dtype(STORED[dtype]), (group, name)
        assert d.chunks is None and (group != "masters" or d.id.get_offset() == f["weights"][name].id.get_offset())
        n, width = d.size, d.dtype.itemsize
        index = np.arange(n, dtype=np.uint64)
        want = mix(index + np.uint64(1000003 * (number + 1) + (salt << 40))) & np.uint64(M >> (64 - 8 * width))
        bits = np.frombuffer(d[...].tobytes(), "<u%d" % width).astype(np.uint64)
        assert (bits == want).all(), (group, name)
        key = np.uint64(xxh64(name.encode()))
        terms = mix(mix(key + np.uint64(0x9E3779B97F4A7C15) * (index + np.uint64(1))) ^ bits)
        assert int(terms.sum(dtype=np.uint64)) == int(d.attrs["hash"]), (group, name)
print("24 tensors read by h5py")
