#!/usr/bin/env python3
"""Makes tables.bin: what the blocks of the formats of tables, grids and trits mean.

    pip install gguf==0.19.0 numpy llama-cpp-python==0.3.36
    python tables.py

The records are those of golden.bin (see make.py): D and X for every format, Q for those with a quantizer. The dot
products follow profile d1 with exact fractions, each step rounded once; codes and scales are told apart by giving
gguf.quants.dequantize blocks whose codes are all the same.
"""

import ctypes
import pathlib
import struct
from fractions import Fraction

import llama_cpp
import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType as Type, quants

RNG = np.random.default_rng(20240301)
# Number, weights and bytes of a block of those that only llama.cpp reads.
OTHER = {"Q1_0": (41, 128, 18), "Q2_0": (42, 64, 18)}
# Where the f16 scale of a block is; MXFP4 and NVFP4 have none, IQ1_M's is spread over four words.
SCALE = {"IQ4_XS": 0, "TQ1_0": 52, "TQ2_0": 64, "IQ3_S": 0, "IQ3_XXS": 0, "IQ2_XXS": 0, "IQ2_XS": 0, "IQ2_S": 0,
         "IQ1_S": 0, "Q1_0": 0, "Q2_0": 0}
FORMATS = ["MXFP4", "IQ4_XS", "TQ1_0", "TQ2_0", "IQ3_S", "IQ3_XXS", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ1_S", "IQ1_M",
           "NVFP4", "Q1_0", "Q2_0"]
QUANTIZED = ["MXFP4", "TQ1_0", "TQ2_0"]
HALVES = ["IQ2_XS", "IQ2_S", "IQ1_M"]


class Traits(ctypes.Structure):
    """The beginning of ggml_type_traits."""

    _fields_ = [("name", ctypes.c_char_p), ("length", ctypes.c_int64), ("interleave", ctypes.c_int64),
                ("size", ctypes.c_size_t), ("quantized", ctypes.c_bool),
                ("to_float", ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64))]


LIBRARY = ctypes.CDLL(str(pathlib.Path(llama_cpp.__file__).parent / "lib" / "libggml-base.so"))
LIBRARY.ggml_get_type_traits.restype = ctypes.POINTER(Traits)


def size_of(name):
    """Weights and bytes of a block."""
    return OTHER[name][1:] if name in OTHER else GGML_QUANT_SIZES[Type[name]]


def record(kind, name, blocks, weights, *more):
    data = np.ascontiguousarray(blocks).tobytes()
    count = len(data) // size_of(name)[1]
    head = struct.pack("<cB", kind, len(name)) + name.lower().encode() + struct.pack("<II", count, len(data))
    return head + data + np.ascontiguousarray(weights, dtype="<f4").tobytes() + np.array(more, "<f4").tobytes()


def put_scales(name, blocks, bits):
    if name in ("MXFP4", "NVFP4"):
        return
    if name == "IQ1_M":
        for j in range(4):
            blocks[:, 49 + 2 * j] = blocks[:, 49 + 2 * j] & 15 | (bits >> (4 * j) & 15).astype(np.uint8) << 4
        return
    blocks[:, SCALE[name]:SCALE[name] + 2] = bits.astype(np.uint16).view(np.uint8).reshape(-1, 2)


def get_scales(name, blocks):
    if name == "NVFP4":
        return np.ones(len(blocks), np.float32)
    if name == "MXFP4":
        return np.array([2.0 ** (int(e) - 128) for e in blocks[:, 0]], np.float32)
    if name == "IQ1_M":
        bits = sum((blocks[:, 49 + 2 * j].astype(np.uint16) >> 4) << (4 * j) for j in range(4)).astype(np.uint16)
    else:
        bits = np.ascontiguousarray(blocks[:, SCALE[name]:SCALE[name] + 2]).view(np.uint16).reshape(-1)
    return bits.view(np.float16).astype(np.float32)


def dequantized(name, blocks):
    if name in OTHER:
        number, length, _ = OTHER[name]
        traits, out = LIBRARY.ggml_get_type_traits(number).contents, np.empty(len(blocks) * length, np.float32)
        data = np.ascontiguousarray(blocks)
        traits.to_float(data.ctypes.data, out.ctypes.data, len(out))
        return out
    return quants.dequantize(blocks.reshape(1, -1), Type[name]).reshape(-1)


def random_blocks(name):
    size = size_of(name)[1]
    count = 24 if size < 64 else 8
    blocks = RNG.integers(0, 256, (count, size), dtype=np.uint8)
    bits = RNG.integers(0, 1 << 16, count, dtype=np.uint16)
    bits[(bits & 0x7C00) == 0x7C00] &= 0x83FF
    bits[:3] = [0, 3, 0x8001]
    put_scales(name, blocks, bits)
    if name == "MXFP4":
        blocks[:4, 0] = [0, 1, 2, 255]
    if name == "NVFP4":
        blocks[:2, :4] = [[0, 1, 0x7E, 0x7F], [7, 8, 0x38, 0xFF]]
    return blocks


def rounded(value):
    """A fraction rounded to the nearest f32, ties to even."""
    if value == 0:
        return np.float32(0)
    size = abs(value)
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    exponent -= Fraction(2) ** exponent > size
    unit = Fraction(2) ** (max(exponent, -126) - 23)
    return np.float32(float(round(value / unit) * unit))


def exact(value):
    return Fraction(float(value))


def same_codes(name, blocks):
    """The blocks with codes that all stand for one value, and eight times that value."""
    flat = blocks.copy()
    if name == "IQ4_XS":
        flat[:, 8:] = 0x88
        return flat, 8
    if name == "IQ3_S":
        flat[:, 2:106] = 0
        return flat, 8
    if name == "IQ3_XXS":
        flat[:, 2:66] = 0
        flat[:, 66:].reshape(len(flat), 8, 4)[:, :, :3] = 0
        flat[:, 69::4] &= 0xF0
        return flat, 8 * 4
    if name == "IQ2_XXS":
        for at in range(7):
            flat[:, 2 + at::8] = 0
        flat[:, 9::8] &= 0xF0
        return flat, 8 * 8
    if name == "IQ2_XS":
        flat[:, 2:66] = 0
        return flat, 8 * 8
    if name == "IQ2_S":
        flat[:, 2:74] = 0
        return flat, 8 * 8
    if name == "IQ1_S":
        flat[:, 2:34] = 0
        flat[:, 34::2] = 0
        flat[:, 35::2] &= 0x70
        return flat, -7
    assert name == "IQ1_M"
    flat[:, :48] = 0
    return flat, -7


def dot(name, blocks, x):
    """Profile d1, straight from its definition; see the formats' modules."""
    unit = {"IQ3_XXS": 4, "IQ2_XXS": 8, "IQ2_XS": 8, "IQ2_S": 8, "IQ1_S": 8, "IQ1_M": 8}.get(name, 1)
    x = x.reshape(-1, 32)
    if name == "NVFP4":
        return dot_of_floats(blocks, x)
    amax = np.abs(x).max(axis=1)
    q = np.rint(x * (np.float32(127) / amax)[:, None]).astype(np.int64)
    dx = amax / np.float32(127)
    d = get_scales(name, blocks)
    ones = blocks.copy()
    put_scales(name, ones, np.full(len(blocks), 0x3C00, np.uint16))
    if name == "MXFP4":
        ones[:, 0] = 128
    weights = dequantized(name, ones).astype(np.float64) * unit  # scale * code
    if name in SCALE and name[:2] not in ("TQ", "Q1", "Q2") or name == "IQ1_M":
        flat, value = same_codes(name, ones)
        scale = dequantized(name, flat).astype(np.float64) * unit * (8 / value)
        if name.startswith("IQ1"):
            scale /= 8
    else:
        scale = np.ones_like(weights)
    weights, scale = weights.reshape(-1, 32), scale.reshape(-1, 32)
    assert np.array_equal(weights, np.rint(weights)) and np.array_equal(scale, np.rint(scale)), name
    acc, per = np.float32(0), len(weights) // len(d)
    for b in range(len(weights)):
        db = exact(d[b // per]) / unit
        if name in HALVES:
            isum, factor = int((weights[b] * q[b]).sum()), db
        else:
            code = np.where(scale[b] == 0, 0, weights[b] / np.where(scale[b] == 0, 1, scale[b]))
            assert np.array_equal(code, np.rint(code)), name
            isum, factor = int((code * q[b]).sum()), db * int(scale[b][0])
        product = rounded(exact(rounded(factor)) * exact(dx[b]))
        acc = rounded(isum * exact(product) + exact(acc))
    return acc


def dot_of_floats(blocks, x):
    """The same of NVFP4, whose scales are floats."""
    amax = np.abs(x).max(axis=1)
    q = np.rint(x * (np.float32(127) / amax)[:, None]).astype(np.int64)
    ones = blocks.copy()
    ones[:, :4] = 0x40  # 2, of which half is counted
    codes = dequantized("NVFP4", ones).astype(np.int64).reshape(-1, 2, 16)
    scales = blocks[:, :4].reshape(-1, 2)
    acc = np.float32(0)
    for b, dx in enumerate(amax / np.float32(127)):
        parts = []
        for h in range(2):
            flat = np.full((1, 36), 0x22, np.uint8)  # 1 everywhere, which is 2 halves
            flat[:, :4] = scales[b][h]
            half = exact(dequantized("NVFP4", flat)[0]) / 2
            parts.append(half * int((codes[b][h] * q[b][16 * h:16 * h + 16]).sum()))
        assert all(exact(rounded(part)) == part for part in parts)
        acc = rounded(exact(rounded(parts[0] + parts[1])) * exact(dx) + exact(acc))
    return acc


def row(name):
    """The blocks of 512 weights, all scales between 0.5 and 2 so that every term shows in the last bits."""
    length, size = size_of(name)
    count = 512 // length
    blocks = RNG.integers(0, 256, (count, size), dtype=np.uint8)
    bits = RNG.integers(0x3800, 0x4000, count, dtype=np.uint16) | RNG.integers(0, 2, count, np.uint16) << 15
    put_scales(name, blocks, bits)
    if name == "MXFP4":
        blocks[:, 0] = RNG.integers(120, 130, count)
    if name == "NVFP4":
        blocks[:, :4] = RNG.integers(0x30, 0x40, (count, 4))
    if name == "IQ4_XS":  # no scale of 0, behind which no code is seen
        blocks[:, 4:8] |= 0x11
    return blocks


def weights(count):
    w = RNG.standard_normal(count).astype(np.float32) * 0.02
    w *= np.repeat(RNG.uniform(0.3, 2.0, count // 32), 32).astype(np.float32)
    w[RNG.integers(0, count, count // 200)] *= 8
    w[32:64] = 0
    return w.astype(np.float32)


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
    path = pathlib.Path(__file__).with_name("tables.bin")
    path.write_bytes(b"".join(records))
    print(path.stat().st_size, "bytes")


main()
