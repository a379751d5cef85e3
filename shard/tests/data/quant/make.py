#!/usr/bin/env python3
"""Makes golden.bin: what other programs say the blocks of each format mean.

    pip install gguf==0.19.0 numpy llama-cpp-python==0.3.36
    python make.py

golden.bin is a sequence of records: kind u8, length of the name u8, name, blocks u32, bytes u32, then
  kind D: the blocks, then every weight as f32, as gguf.quants.dequantize computes them from random blocks
  kind Q: the blocks that gguf.quants.quantize makes of the weights, then those weights as f32
  kind L: the blocks that ggml_quantize_chunk of llama.cpp makes of the weights, then those weights as f32
Everything is little endian. Scales are random f16 values but finite; some are zero, negative or subnormal.
"""

import ctypes
import pathlib
import struct

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
SEARCHED = ["Q4_K", "Q5_K", "Q6_K"]


def record(kind, name, blocks, weights):
    data = np.ascontiguousarray(blocks).view(np.uint8).tobytes()
    count = len(data) // GGML_QUANT_SIZES[Type[name]][1]
    head = struct.pack("<cB", kind, len(name)) + name.lower().encode() + struct.pack("<II", count, len(data))
    return head + data + np.ascontiguousarray(weights, dtype="<f4").tobytes()


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


def main():
    records = []
    for name in FORMATS:
        blocks = random_blocks(name)
        records.append(record(b"D", name, blocks, dequantized(name, blocks)))
    for name in QUANTIZED:
        w = weights(512)
        records.append(record(b"Q", name, quants.quantize(w.reshape(1, -1), Type[name]), w))
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
