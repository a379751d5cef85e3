#!/usr/bin/env python3
"""Makes golden.bin: what other programs say the blocks of each format mean.

    pip install gguf==0.19.0 numpy llama-cpp-python==0.3.36
    python make.py

golden.bin is a sequence of records: kind u8, length of the name u8, name, blocks u32, bytes u32, then
  kind D: the blocks, then every weight as f32, as gguf.quants.dequantize computes them from random blocks
  kind Q: the blocks that gguf.quants.quantize makes of the weights, then those weights as f32
  kind L: the blocks that ggml_quantize_chunk of llama.cpp makes of the weights, then those weights as f32
  kind X: the blocks of a row, one activation per weight as f32, then their dot product in profile d1 as f32,
          computed here from its definition with exact fractions, each step rounded once
Everything is little endian. Scales are random f16 values but finite; some are zero, negative or subnormal.
"""

import ctypes
import pathlib
import struct
from fractions import Fraction

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType as Type, quants

RNG = np.random.default_rng(20240229)
FORMATS = ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL"]
# Where the f16 scales of a block are.
SCALES = {
    "Q8_0": [0], "Q4_0": [0], "Q5_0": [0], "IQ4_NL": [0], "Q4_1": [0, 2], "Q5_1": [0, 2],
    "Q2_K": [80, 82], "Q3_K": [108], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208],
}
QUANTIZED = ["F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"]
SEARCHED = ["Q4_K", "Q5_K", "Q6_K", "IQ4_XS", "IQ4_NL", "Q3_K", "Q2_K"]


def record(kind, name, blocks, weights, *more):
    data = np.ascontiguousarray(blocks).view(np.uint8).tobytes()
    count = len(data) // GGML_QUANT_SIZES[Type[name]][1]
    head = struct.pack("<cB", kind, len(name)) + name.lower().encode() + struct.pack("<II", count, len(data))
    return head + data + np.ascontiguousarray(weights, dtype="<f4").tobytes() + np.array(more, "<f4").tobytes()


def random_blocks(name):
    _, size = GGML_QUANT_SIZES[Type[name]]
    if name == "F32":
        return np.concatenate([RNG.standard_normal(60), [0.0, -0.0, 1e-45, -3e38]]).astype("<f4").view(np.uint8)
    if name in ("F16", "BF16"):
        bits = RNG.integers(0, 1 << 16, 256, dtype=np.uint16)
        infinite = 0x7C00 if name == "F16" else 0x7F80
        bits[(bits & infinite) == infinite] &= 0x83FF if name == "F16" else 0x80FF
        bits[:4] = [0, 0x8000, 1, infinite]
        return bits.view(np.uint8)
    count = 24 if size < 64 else 8
    blocks = RNG.integers(0, 256, (count, size), dtype=np.uint8)
    for at in SCALES[name]:
        bits = RNG.integers(0, 1 << 16, count, dtype=np.uint16)
        bits[(bits & 0x7C00) == 0x7C00] &= 0x83FF
        bits[:3] = [0, 3, 0x8001]
        blocks[:, at:at + 2] = bits.view(np.uint8).reshape(count, 2)
    return blocks.reshape(-1)


def dequantized(name, blocks):
    return quants.dequantize(blocks.reshape(1, -1), Type[name]).reshape(-1)


def weights(count):
    """Like a model's: normal, the spread differing from group to group, a few outliers, one group of zeros."""
    w = RNG.standard_normal(count).astype(np.float32) * 0.02
    w *= np.repeat(RNG.uniform(0.3, 2.0, count // 32), 32).astype(np.float32)
    w[RNG.integers(0, count, count // 200)] *= 8
    w[32:64] = 0
    return w.astype(np.float32)


def llama_cpp(name, w):
    import llama_cpp

    base = pathlib.Path(llama_cpp.__file__).parent / "lib" / "libggml-base.so"
    quantize = ctypes.CDLL(str(base)).ggml_quantize_chunk
    quantize.restype = ctypes.c_size_t
    length, size = GGML_QUANT_SIZES[Type[name]]
    out = np.zeros(w.size // length * size, dtype=np.uint8)
    quantize(ctypes.c_int(Type[name]), w.ctypes.data_as(ctypes.c_void_p), out.ctypes.data_as(ctypes.c_void_p),
             ctypes.c_int64(0), ctypes.c_int64(1), ctypes.c_int64(w.size), None)
    return out


def rounded(value):
    """A fraction rounded to the nearest f32, ties to even."""
    if value == 0:
        return np.float32(0)
    size = abs(value)
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    exponent -= Fraction(2) ** exponent > size
    unit = Fraction(2) ** (max(exponent, -126) - 23)
    return np.float32(float(round(value / unit) * unit))


def fma(a, b, c):
    return rounded(Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c)))


def edited(name, blocks, **fields):
    """What the blocks mean after some of their bytes are replaced: how codes and scales are told apart here."""
    places = {
        "Q2_K": {"scales": (0, 16), "qs": (16, 80), "d": (80, 82), "dmin": (82, 84)},
        "Q3_K": {"hmask": (0, 32), "qs": (32, 96), "low": (96, 104), "high": (104, 108), "d": (108, 110)},
        "Q4_K": {"d": (0, 2), "dmin": (2, 4), "sc": (4, 8), "mn": (8, 12), "both": (12, 16), "qs": (16, 144)},
        "Q5_K": {"d": (0, 2), "dmin": (2, 4), "sc": (4, 8), "mn": (8, 12), "both": (12, 16), "qh": (16, 48),
                 "qs": (48, 176)},
        "Q6_K": {"ql": (0, 128), "qh": (128, 192), "scales": (192, 208), "d": (208, 210)},
    }.get(name, {"d": (0, 2), "m": (2, 4)})
    blocks = blocks.reshape(-1, GGML_QUANT_SIZES[Type[name]][1]).copy()
    for field, value in fields.items():
        first, end = places[field]
        blocks[:, first:end] = np.array([value], np.float16).view(np.uint8) if field in ("d", "dmin", "m") else value
    with np.errstate(all="ignore"):
        return dequantized(name, blocks.reshape(-1)).astype(np.float64)


def halves(blocks, name, at):
    blocks = blocks.reshape(-1, GGML_QUANT_SIZES[Type[name]][1])
    return np.ascontiguousarray(blocks[:, at:at + 2]).view(np.float16).astype(np.float32).reshape(-1)


def dot(name, blocks, x):
    """Profile d1, straight from its definition; see the formats' modules."""
    acc = np.float32(0)
    if name in ("F32", "F16", "BF16"):
        for w, x in zip(dequantized(name, blocks), x):
            acc = fma(w, x, acc)
        return acc
    x = x.reshape(-1, 32)
    amax = np.abs(x).max(axis=1)
    q = np.rint(x * (np.float32(127) / amax)[:, None]).astype(np.int64)
    dx = amax / np.float32(127)
    f32 = np.float32
    one = {"Q4_1": dict(d=1, m=0), "Q5_1": dict(d=1, m=0), "Q2_K": dict(d=1, dmin=0, scales=1),
           "Q3_K": dict(d=1, low=0x11, high=0xAA), "Q4_K": dict(d=1, dmin=0, sc=1, mn=0, both=1),
           "Q5_K": dict(d=1, dmin=0, sc=1, mn=0, both=1), "Q6_K": dict(d=1, scales=1)}.get(name, dict(d=1))
    codes = edited(name, blocks, **one).astype(np.int64).reshape(-1, 32)
    unit = {"Q2_K": dict(d=1, dmin=0, qs=0x55), "Q3_K": dict(d=1, hmask=0xFF, qs=0x55), "Q4_K": dict(d=1, dmin=0, qs=0x11),
            "Q5_K": dict(d=1, dmin=0, qs=0x11, qh=0), "Q6_K": dict(d=1, ql=0x11, qh=0xAA)}.get(name)
    sc = edited(name, blocks, **unit).astype(np.int64).reshape(-1, 32) if unit else None
    mn = -edited(name, blocks, d=0, dmin=1).astype(np.int64).reshape(-1, 32) if name in ("Q2_K", "Q4_K", "Q5_K") else None
    d = halves(blocks, name, SCALES[name][0])
    per_block = len(codes) // len(d)
    for b, (codes, q, dx) in enumerate(zip(codes, q, dx)):
        d_b = d[b // per_block]
        m_b = halves(blocks, name, SCALES[name][1])[b // per_block] if len(SCALES[name]) > 1 else None
        if name in ("Q4_1", "Q5_1"):
            acc = fma((codes * q).sum(), d_b * dx, acc)
            acc = fma(q.sum(), m_b * dx, acc)
        elif name in ("Q4_K", "Q5_K"):
            acc = fma((codes * q).sum(), d_b * f32(sc[b][0]) * dx, acc)
            acc = fma(q.sum(), -(m_b * f32(mn[b][0]) * dx), acc)
        elif name == "Q2_K":
            acc = fma((sc[b] * codes * q).sum(), d_b * dx, acc)
            acc = fma((mn[b] * q).sum(), -(m_b * dx), acc)
        elif name in ("Q3_K", "Q6_K"):
            acc = fma((sc[b] * codes * q).sum(), d_b * dx, acc)
        else:
            acc = fma((codes * q).sum(), d_b * dx, acc)
    return acc


def row(name):
    """The blocks of 512 weights, all scales between 0.5 and 2 so that every term shows in the last bits."""
    length, size = GGML_QUANT_SIZES[Type[name]]
    if length == 1:
        return quants.quantize(weights(512).reshape(1, -1), Type[name]).reshape(-1).view(np.uint8)
    blocks = RNG.integers(0, 256, (512 // length, size), dtype=np.uint8)
    for at in SCALES[name]:
        bits = RNG.integers(0x3800, 0x4000, len(blocks), dtype=np.uint16) | RNG.integers(0, 2, len(blocks), np.uint16) << 15
        blocks[:, at:at + 2] = bits.view(np.uint8).reshape(-1, 2)
    return blocks.reshape(-1)


def main():
    records = []
    for name in FORMATS:
        blocks = random_blocks(name)
        records.append(record(b"D", name, blocks, dequantized(name, blocks)))
    for name in QUANTIZED:
        w = weights(512)
        records.append(record(b"Q", name, quants.quantize(w.reshape(1, -1), Type[name]), w))
    for name in FORMATS * 3:
        blocks, x = row(name), RNG.standard_normal(512).astype(np.float32)
        records.append(record(b"X", name, blocks, x, dot(name, blocks, x)))
    w = weights(16 * 256)
    for name in SEARCHED:
        blocks = llama_cpp(name, w)
        error = dequantized(name, blocks) - w
        print(f"{name}: llama.cpp's relative RMSE {np.sqrt((error**2).mean() / (w**2).mean()):.5f}")
        records.append(record(b"L", name, blocks, w))
    path = pathlib.Path(__file__).with_name("golden.bin")
    path.write_bytes(b"".join(records))
    print(path.stat().st_size, "bytes")


main()
