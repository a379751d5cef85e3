"""Muon: momentum whose matrix updates are made orthogonal by five Newton-Schulz steps.

After Keller Jordan's description (kellerjordan.github.io/posts/muon, 2024). On this model it needs roughly half the tokens that
AdamW needs. Matrices of one shape are stacked, so that a step is three batched products per iteration.
"""

import torch


def orthogonal(g):
    """A matrix close to U V^T of each g = U S V^T in the stack [n, rows, columns], rows <= columns."""
    x = g / (g.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(5):
        a = x @ x.mT
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return x


class Muon(torch.optim.Optimizer):
    """`parts` gives, for each parameter, the row counts of the matrices that are fused in it."""

    def __init__(self, parameters, parts, lr=0.02, momentum=0.95):
        super().__init__(parameters, dict(lr=lr, momentum=momentum))
        self.parts = parts
        for parameter in parameters:
            # Shared, so that the process which writes the checkpoint sees what its siblings updated.
            self.state[parameter]["momentum"] = torch.zeros_like(parameter).share_memory_()

    @torch.no_grad()
    def step(self):
        group = self.param_groups[0]
        stacks = {}
        for parameter, parts in zip(group["params"], self.parts):
            momentum = self.state[parameter]["momentum"]
            momentum.lerp_(parameter.grad, 1 - group["momentum"])
            update = parameter.grad.lerp(momentum, group["momentum"])
            for target, piece in zip(parameter.split(parts), update.split(parts)):
                rows, columns = piece.shape
                if rows > columns:
                    target, piece = target.mT, piece.mT
                stacks.setdefault(tuple(piece.shape), []).append((target, piece, max(1.0, rows / columns) ** 0.5))
        for entries in stacks.values():
            updates = orthogonal(torch.stack([piece for _, piece, _ in entries]))
            for (target, _, scale), update in zip(entries, updates):
                target.add_(update, alpha=-group["lr"] * scale)
