"""Text models of classes that read pictures, too: those have no causal language model of text alone."""

import types

import torch


def text_of(inner):
    """What makes a model of a configuration: the text model `inner` with a head, called as other models are."""
    return lambda config: WithHead(inner, config)


class WithHead(torch.nn.Module):
    def __init__(self, inner, config):
        super().__init__()
        self.model = inner(config)
        self.source = inner.__module__
        if not config.tie_word_embeddings:
            self.lm_head = torch.nn.Linear(config.hidden_size, config.vocab_size, bias=False)

    def forward(self, ids, use_cache=False):
        hidden = self.model(input_ids=ids, use_cache=use_cache).last_hidden_state
        head = self.lm_head.weight if hasattr(self, "lm_head") else self.model.embed_tokens.weight
        return types.SimpleNamespace(logits=hidden @ head.T)
