"""The network of Minnow: a small Llama in plain PyTorch.

RMSNorm, grouped-query attention with rotary positions on adjacent pairs (2i, 2i + 1), SwiGLU, embedding tied with the
head. The tensors have the layout that GGUF's `llama` architecture expects, so the export only renames them.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass(frozen=True)
class Shape:
    vocab: int = 2048
    hidden: int = 256
    layers: int = 8
    heads: int = 8
    kv_heads: int = 4
    ffn: int = 512
    context: int = 1024
    rope_base: float = 10000.0
    epsilon: float = 1e-5

    @property
    def head(self):
        return self.hidden // self.heads


class Norm(nn.Module):
    def __init__(self, width, epsilon):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.epsilon = epsilon

    def forward(self, x):
        return F.rms_norm(x, (x.shape[-1],), self.weight, self.epsilon)


def rotate(x, cos, sin):
    """Turns the pairs (2i, 2i + 1) of x [batch, heads, tokens, head]; cos and sin are [tokens, head / 2]."""
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1).flatten(-2)


class Block(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.s = s
        self.attn_norm, self.ffn_norm = Norm(s.hidden, s.epsilon), Norm(s.hidden, s.epsilon)
        self.qkv = nn.Linear(s.hidden, (s.heads + 2 * s.kv_heads) * s.head, bias=False)
        self.out = nn.Linear(s.heads * s.head, s.hidden, bias=False)
        self.gate_up = nn.Linear(s.hidden, 2 * s.ffn, bias=False)
        self.down = nn.Linear(s.ffn, s.hidden, bias=False)
        for linear in (self.qkv, self.gate_up, self.out, self.down):
            nn.init.normal_(linear.weight, std=0.02)
        for linear in (self.out, self.down):
            linear.weight.data /= math.sqrt(2 * s.layers)

    def forward(self, x, cos, sin, past=None):
        s = self.s
        batch, tokens, _ = x.shape
        qkv = self.qkv(self.attn_norm(x)).view(batch, tokens, -1, s.head).transpose(1, 2)
        q, k, v = qkv.split([s.heads, s.kv_heads, s.kv_heads], 1)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        if past is not None:
            k, v = past.append(self, k, v)
        group = s.heads // s.kv_heads
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=tokens > 1)
        x = x + self.out(y.transpose(1, 2).reshape(batch, tokens, -1))
        gate, up = self.gate_up(self.ffn_norm(x)).chunk(2, -1)
        return x + self.down(F.silu(gate) * up)


class Past:
    """Keys and values of one conversation, per block."""

    def __init__(self):
        self.held = {}
        self.tokens = 0

    def append(self, block, k, v):
        if block in self.held:
            k, v = torch.cat((self.held[block][0], k), 2), torch.cat((self.held[block][1], v), 2)
        self.held[block] = (k, v)
        return k, v


class Minnow(nn.Module):
    def __init__(self, shape=Shape()):
        super().__init__()
        self.shape = shape
        self.embed = nn.Embedding(shape.vocab, shape.hidden)
        nn.init.normal_(self.embed.weight, std=0.02)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = Norm(shape.hidden, shape.epsilon)
        frequency = shape.rope_base ** (-torch.arange(0, shape.head, 2).float() / shape.head)
        angle = torch.outer(torch.arange(shape.context).float(), frequency)
        self.register_buffer("cos", angle.cos(), persistent=False)
        self.register_buffer("sin", angle.sin(), persistent=False)

    def forward(self, ids, past=None):
        """Logits [batch, tokens, vocab] of ids [batch, tokens]; with `past`, ids continue it (one token, or the start)."""
        start = past.tokens if past else 0
        cos, sin = self.cos[start : start + ids.shape[1]], self.sin[start : start + ids.shape[1]]
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x, cos, sin, past)
        if past is not None:
            past.tokens += ids.shape[1]
        return self.norm(x) @ self.embed.weight.T

    @torch.no_grad()
    def greedy(self, ids, count, stop):
        """The up to `count` most likely ids that follow the list `ids`, ended by `stop` (not included)."""
        past, new = Past(), []
        logits = self(torch.tensor([ids]), past)[0, -1]
        while len(new) < count and past.tokens < self.shape.context:
            best = int(logits.argmax())
            if best == stop:
                break
            new.append(best)
            logits = self(torch.tensor([[best]]), past)[0, -1]
        return new
